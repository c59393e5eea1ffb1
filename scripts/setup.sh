#!/bin/sh
# Prepare .venv for one level of work, from nothing but Python >= 3.11 and pip.
#
#   core    the package and what it needs to serve
#   check   core, and what make check needs
#   spark   core, Spark and a Java for it, and a Kafka client for the demo
#   dev     all of these, and the commands tests drive from outside
#
# Each level leaves a stamp, .venv/.<level>, that the Makefile compares with pyproject.toml. Versions are those of
# requirements/dev.lock (`make lock`); UNLOCKED=1 takes the newest that pyproject.toml allows, and so does a Python
# for which the locked ones cannot be installed.
set -eu
cd "$(dirname "$0")/.."
level=${1:?usage: scripts/setup.sh core|check|spark|dev}
bin=.venv/bin

say() { echo "set-up: $*" >&2; }
die() { say "$*"; exit 1; }

find_python() {
    for python in ${PYTHON:-} python3 python3.11 python3.12 python3.13 python3.14 python; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
    die "no Python 3.11 or newer was found; install one, or name it: make PYTHON=/path/to/python"
}

# Debian splits ensurepip off into python3-venv; the machine's own pip can then place pip in .venv.
make_venv() {
    python=$(find_python)
    say "making .venv with $("$python" --version)"
    rm -rf .venv
    if "$python" -c 'import ensurepip' 2>/dev/null && "$python" -m venv .venv; then return; fi
    rm -rf .venv
    "$python" -m venv --without-pip .venv || die "$python cannot make a virtual environment"
    "$python" -m pip --version >/dev/null 2>&1 ||
        { rm -rf .venv; die "$python has neither ensurepip nor pip; install python3-venv or python3-pip"; }
    site=$($bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$python" -m pip install --quiet --disable-pip-version-check --target "$site" pip ||
        { rm -rf .venv; die "pip could not be placed in .venv; the lines above say why"; }
}

pip_install() { $bin/python -m pip install --quiet --disable-pip-version-check --no-input "$@" >&2; }

install() {
    say "installing $* (done once)"
    if [ -z "${UNLOCKED:-}" ]; then
        pip_install --constraint requirements/dev.lock "$@" && return
        say "the versions of requirements/dev.lock could not be installed; trying the newest instead"
    fi
    pip_install "$@" || die "pip could not install $*; the lines above say why"
}

may_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() {
    may_apt || return 1
    say "installing $* with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get install -y -q --no-install-recommends "$@" ||
        { apt-get update -q && apt-get install -y -q --no-install-recommends "$@"; }
    } >.venv/apt.log 2>&1 </dev/null || { say "apt-get failed; see .venv/apt.log"; return 1; }
}

# Spark needs Java: the machine's, else pip's, else Debian's, else one sentence.
provide_java() {
    if $bin/python -m cordwood.pipeline.runtime.java >/dev/null 2>&1; then return; fi
    ( install -e '.[jdk]' ) || apt_install openjdk-17-jre-headless || true
    $bin/python -m cordwood.pipeline.runtime.java >/dev/null || die "Spark has no Java to run on, see above"
}

# Commands the tests use; without them tests are skipped and the end of the run names them.
provide_tools() {
    grep -v '^#' tests/tools.txt | while read -r tool package; do
        command -v "$tool" >/dev/null || apt_install "$package" ||
            say "$tool is missing: its tests will be skipped, and named at the end of the run"
    done
}

stamp() { for done in "$@"; do touch ".venv/.$done"; done; }

$bin/python -m pip --version >/dev/null 2>&1 || make_venv
case $level in
    core) install -e . && stamp core ;;
    check) install -e '.[check]' && stamp core check ;;
    spark) install -e '.[demo]' && provide_java && stamp core spark ;;
    dev) install -e '.[dev]' && provide_java && provide_tools && stamp core check spark dev ;;
    *) die "there is no level $level; core, check, spark and dev are" ;;
esac
