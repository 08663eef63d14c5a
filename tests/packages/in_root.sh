#!/bin/bash
# Runs inside a fresh root: installs the packages of /packages, uses them, purges them; nothing of them may be left.
set -eu
cd /packages
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
apt=(apt-get -q -y -o Acquire::Retries=2 -o Acquire::http::Timeout=20 --no-install-recommends)

list_files() {
  find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path /packages -o -path /var/log \
    -o -path /var/cache -o -path /var/lib/apt -o -path '/var/lib/dpkg/*-old' \) -prune -o -print | sort
}
say() { echo "in root: $*"; }

# What they depend on stays; so it comes first, by apt, which finds every package in the release's archive.
"${apt[@]}" satisfy "$(dpkg-deb -f verbena_*.deb Depends), $(dpkg-deb -f python3-verbena_*.deb Depends | sed 's/, verbena.*//')"
echo started >progress
list_files >before
"${apt[@]}" install ./*.deb
list_files >between
[ "$(comm -13 before between | wc -l)" -gt 50 ] || { say "hardly anything was installed"; exit 1; }

for tool in $(dpkg -L verbena | sed -n 's|^/usr/bin/||p'); do
  [[ $("$tool" --version) == "$tool "[0-9]* ]] || { say "$tool --version"; exit 1; }
done
# No RDMA library is installed here: the plugin takes softverbs, which came with it.
said=$(verbena-perf --sizes 64k --iters 100 --json)
[[ $said == *'"name": "verbena_softverbs0"'* && $said == *'"wrong_bytes": 0'* ]] || { say "verbena-perf: $said"; exit 1; }
say "verbena-perf moved messages over softverbs"
# As NCCL opens the plugin: by name.
python3 - <<'END'
import ctypes
for name in ("libnccl-net-verbena.so", "libnccl-net.so", "libverbena.so.0.1"):
    ctypes.CDLL(name)
assert ctypes.c_void_p.in_dll(ctypes.CDLL("libnccl-net.so"), "ncclNetPlugin_v8").value
import verbena
library = verbena.LibraryFinder.find_library()
assert library.startswith("/usr/lib"), library
assert "dist-packages" in verbena.__file__, verbena.__file__
END
# Python leaves compiled modules behind when its user may.
python3 -c 'import verbena.torchcomms' 2>/dev/null || true
ldconfig -p | grep -q 'libverbena.so.0.1 ' || { say "the loader does not know libverbena.so.0.1"; exit 1; }
say "plugin, library and Python package are found"

"${apt[@]}" purge verbena verbena-nccl-default python3-verbena
list_files >after
if ! left=$(diff before after); then
  say "left behind or taken along:"
  echo "$left"
  exit 1
fi
! ldconfig -p | grep verbena || { say "the loader still knows verbena"; exit 1; }
say "nothing was left behind"
echo "done" >progress
