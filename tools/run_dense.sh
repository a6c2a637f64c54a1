#!/bin/sh
# The runs behind docs/dense.md, on one GPU.
#   [RUNS="NAME ..."] [JOBS=N] tools/run_dense.sh DATA [OUT [OPTION ...]]
# DATA holds camvid, bccd and coco_mini; RUNS picks some of the names below; JOBS of them share the GPU, one process each;
# options such as --schedule.epochs 50 or --run.max_steps 100 are passed to every run. Scores are written to
# OUT/NAME/eval-SPLIT/eval.json and collected in OUT/results.json. Started again, incomplete runs resume.
set -eu
here=$(dirname "$0")
all="camvid_inline_swin camvid_swin_softmax camvid_soft_norm camvid_soft_softmax bccd coco_mini cost"

one() { # name, data, out, options of the training
    name=$1 data=$2 out=$3
    shift 3
    case $name in
    camvid_inline_swin) run camvid "val test" "$@" ;;
    camvid_swin_softmax) run camvid "val test" --model.args '{attention: softmax}' "$@" ;;
    camvid_soft_norm) run camvid "val test" --model.name soft_norm_tiny "$@" ;;
    camvid_soft_softmax) run camvid "val test" --model.name soft_norm_tiny --model.args '{attention: softmax}' "$@" ;;
    bccd) run bccd "train val test" "$@" ;;
    coco_mini) weights=/checkpoints/last run coco_mini "train2017 val2017" "$@" ;; # memorized: val selects nothing
    cost) python "$here/measure_dense.py" --out "$out/cost.json" ;;
    *) echo "no run $name; there are $all" >&2 && exit 2 ;;
    esac
}

run() { # recipe, which is also the folder of its data; splits; options of the training
    recipe=$1 splits=$2
    shift 2
    [ -f "$out/$name/done.json" ] || sightline train --config "$recipe" --data "$data/$recipe" --out "$out/$name" "$@"
    for split in $splits; do
        sightline eval --checkpoint "$out/$name${weights:-}" --data "$data/$recipe" --split "$split" --precision "${PRECISION:-bf16}" \
            --batch-size 8 --out "$out/$name/eval-$split"
    done
}

if [ "$1" = --one ]; then
    shift
    one "$@"
    exit
fi
data=$1
out=${2:-runs/dense}
[ $# -lt 2 ] && shift || shift 2
mkdir -p "$out"
status=0
for name in ${RUNS:-$all}; do echo "$name"; done |
    xargs -P "${JOBS:-1}" -I NAME sh -c 'name=$1; shift; "$0" --one "$name" "$@" >"$2/$name.log" 2>&1 ||
        { echo "$name failed; see $2/$name.log" >&2; exit 1; }' "$0" NAME "$data" "$out" "$@" || status=1
python "$here/collect_dense.py" "$out"
exit $status
