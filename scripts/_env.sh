# Sourced by scripts/test, scripts/demo and .ci/run: makes .venv in the project, with the project in it.
# Sets `python` to its interpreter and `teacher_dir` to where the demo teacher is kept, and goes to the project.
#
# PYTHON             the interpreter to make .venv with; else the first Python 3.11+ on the PATH
# DAARI_MLX_EXTRA    the MLX backend on Linux: cpu (default), cuda12 or cuda13
# DAARI_MLX_CACHE    where downloads are kept; default ~/.cache/daari-mlx

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=.venv/bin/python
teacher_dir="${DAARI_MLX_CACHE:-$HOME/.cache/daari-mlx}/demo-teacher"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { printf '== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local name
    if [ -n "${PYTHON:-}" ]; then
        new_enough "$PYTHON" || die "PYTHON=$PYTHON is not a Python 3.11 or newer; name one that is."
        echo "$PYTHON"
        return
    fi
    for name in python3 python3.13 python3.12 python3.11 python3.14; do
        if new_enough "$name"; then
            echo "$name"
            return
        fi
    done
    die "need Python 3.11 or newer, found $(python3 --version 2>/dev/null || echo none). Install one, or name it: PYTHON=..."
}

extras() {
    case "$(uname -s)-$(uname -m)" in
        Darwin-arm64) echo demo,dev ;;
        Linux-*)
            case "${DAARI_MLX_EXTRA:-cpu}" in
                cpu | cuda12 | cuda13) echo "${DAARI_MLX_EXTRA:-cpu},demo,dev" ;;
                *) die "DAARI_MLX_EXTRA=$DAARI_MLX_EXTRA is none of cpu, cuda12, cuda13." ;;
            esac ;;
        *) die "MLX runs on Apple silicon and on Linux; this is $(uname -s) $(uname -m)." ;;
    esac
}

as_wished() { [ -z "${PYTHON:-}" ] || [ "$("$PYTHON" -VV 2>&1)" = "$("$python" -VV)" ]; }

# A .venv may be there already: ours, half of ours, or one that another tool made without pip.
make_venv() {
    if [ -x "$python" ] && new_enough "$python" && as_wished; then
        "$python" -m pip --version >/dev/null 2>&1 && return
        "$python" -m ensurepip >/dev/null 2>&1 && return
    fi
    local base
    base="$(find_python)"
    say "making .venv with $("$base" --version)"
    "$base" -m venv --clear .venv ||
        die "$base cannot make a virtual environment; on Debian and Ubuntu install python3-venv."
}

set_up() {
    local chosen wanted
    chosen="$(extras)"
    make_venv
    wanted="$chosen $("$python" -VV | tr '\n' ' ')$(cksum <pyproject.toml)"
    if [ "$(cat .venv/daari-mlx-installed 2>/dev/null)" != "$wanted" ]; then
        say "installing daari-mlx[$chosen] into .venv (some minutes the first time)"
        rm -f .venv/daari-mlx-installed
        "$python" -m pip install --quiet --editable ".[$chosen]" || die "pip could not install daari-mlx[$chosen]."
        echo "$wanted" >.venv/daari-mlx-installed
    fi
    export PATH="$PWD/.venv/bin:$PATH" VIRTUAL_ENV="$PWD/.venv"
}
