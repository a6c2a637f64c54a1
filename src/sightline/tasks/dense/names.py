"""The scores of segmentation and detection: their keys in files, and the words that people read. Imports nothing."""

SEGMENTATION = {"miou": "mIoU", "macc": "mAcc", "aacc": "aAcc"}
DETECTION = {
    f"{kind}_{key}": f"{kind} {words}"
    for kind in ("box", "mask")
    for key, words in (
        ("ap", "AP"), ("ap50", "AP50"), ("ap75", "AP75"), ("ap_small", "AP small"), ("ap_medium", "AP medium"),
        ("ap_large", "AP large"),
    )
}  # fmt: skip
BY_CLASS = {"iou": "IoU", "accuracy": "accuracy", "pixels": "pixels", "box_ap": "box AP", "mask_ap": "mask AP"}
MAIN = {key: (SEGMENTATION | DETECTION)[key] for key in (*SEGMENTATION, "box_ap", "mask_ap")}  # for reports
