#!/usr/bin/env bash
# The main job: predict a training run, train it on two ranks, set the prediction beside what was measured.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ranks=${RANKS:-2}
model=examples/configs/byte-gpt.json
config=examples/configs/zero3.json
bar=$([ -t 2 ] && echo --bar || true)   # mpirun hides the terminal from its ranks
export COLUMNS=${COLUMNS:-80}

echo "== the text =="
python examples/shakespeare.py

echo; echo "== the prediction =="
(set -x; zsim estimate --model "$model" --config "$config" --gpus "$ranks" --device this)

echo; echo "== the run =="
(set -x; mpirun -n "$ranks" python examples/train_gpt.py --config "$config" --model "$model" $bar)

echo "The commands above are in .venv/bin: source .venv/bin/activate"
