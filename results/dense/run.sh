#!/bin/sh
# The runs behind docs/dense.md, on one GPU. Usage: results/dense/run.sh DATA [OUT], where DATA holds camvid, bccd and
# coco_mini. Every run goes on when the script is started again; scores are written to OUT/NAME/eval-SPLIT/eval.json.
set -eu
data=$1
out=${2:-runs/dense}

run() { # name, recipe, data, splits, further options
    name=$1 recipe=$2 place=$3 splits=$4
    shift 4
    [ -f "$out/$name/done.json" ] || sightline train --config "$recipe" --data "$data/$place" --out "$out/$name" "$@"
    for split in $splits; do
        sightline eval --checkpoint "$out/$name" --split "$split" --precision bf16 --batch-size 8 \
            --out "$out/$name/eval-$split"
    done
}

run camvid_inline_swin camvid camvid "val test"
run camvid_swin_softmax camvid camvid "val test" --model.args '{attention: softmax}'
run camvid_soft_norm camvid camvid "val test" --model.name soft_norm_tiny
run camvid_soft_softmax camvid camvid "val test" --model.name soft_norm_tiny --model.args '{attention: softmax}'
run bccd bccd bccd "train val test"
run coco_mini coco_mini coco_mini "train2017 val2017"
python docs/measure_dense.py --out "$out/cost.json"
