#!/bin/sh
# The figures of the tuning note, on a quiet machine: tune the embedded pair at two temperatures,
# then compare adaptive with static trees. Continues where it was interrupted.
#     experiments/tune_embedded.sh OUT [DRAFT]
set -eu
out=${1:?folder of the results}
draft=${2:-embedded}
mkdir -p "$out"
for temperature in 0 0.8; do
    python -m sequoia tune --temperature "$temperature" --draft "$draft" --check 12 --plot \
        --out "$out/tuned-$temperature.json" | tee "$out/tuned-$temperature.txt"
done
python -m experiments.compare_trees --temperature 0.8 --draft "$draft" --sizes 8 16 --prompts 6 \
    --acceptance "$out/tuned-0.8/acceptance-rrs_wor.json" --out "$out/trees.json" \
    | tee "$out/trees.txt"
