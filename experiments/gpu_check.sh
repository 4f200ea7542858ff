#!/usr/bin/env bash
# Everything that can only be learnt on a GPU, in under 8 minutes on one H200-class card:
#
#   experiments/gpu_check.sh [FOLDER for the full outputs, default: a temporary one]
#
# Runs from the source tree with the machine's own Python (PYTHON=... names another) and needs no
# network: weights are random. Packages it lacks may lie in .gpu_site beside this tree
# (pip install --target .gpu_site click psutil tqdm). The short table comes last.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
out=${1:-$(mktemp -d)}
mkdir -p "$out"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}:$PWD/.gpu_site" PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

"$python" - <<'PY' || exit 2
import importlib.util
import sys

needed = "torch transformers accelerate safetensors numpy click psutil tqdm".split()
missing = [name for name in needed if importlib.util.find_spec(name) is None]
if missing:
    sys.exit(f"missing packages: {' '.join(missing)} (see the head of experiments/gpu_check.sh)")
import torch

if not torch.cuda.is_available():
    sys.exit("torch finds no CUDA device")
print(torch.cuda.get_device_name(), "torch", torch.__version__, "CUDA", torch.version.cuda)
PY

status=0
stage() { # stage NAME SECONDS COMMAND...
  local name=$1 limit=$2
  shift 2
  echo "== $name"
  timeout "$limit" "$@" >"$out/$name.txt" 2>"$out/$name.err" || {
    status=1
    echo "   failed or ran past $limit s:"
    tail -n 15 "$out/$name.err"
  }
  tail -n 40 "$out/$name.txt" | grep -v '^{'
}

stage checks 150 "$python" -m experiments.gpu_checks
for preset in 7b-68m 8b-1b; do
  stage "bench-$preset" 150 "$python" -m experiments.bench_step \
    --preset "$preset" --device cuda --seconds 0.05
done

echo
echo "== summary (full outputs in $out)"
tail -n 1 "$out/checks.txt"
"$python" - "$out"/bench-*.txt <<'PY'
import json
import sys

for path in sys.argv[1:]:
    lines = open(path).read().splitlines()
    if not lines or not lines[-1].startswith("{"):
        print(f"{path}: no result")
        continue
    record = json.loads(lines[-1])
    ratios, head = record["ratios"], record["headline"]
    print(
        f"{record['preset']:7} {head['tree']} context {head['context']}:"
        f" step {record['phases']['step']:.3f} ms,"
        f" {ratios['step_to_all_reads_of_weights']:.2f} x all reads of weights (aim 1.25),"
        f" eager/captured {ratios['eager_to_captured_step'] or float('nan'):.2f} (aim 1.5),"
        f" host syncs {record['host_syncs_per_step']} (aim 1),"
        f" launches {record['launches_per_step']}"
    )
PY
exit $status
