# sh runs this script on a machine that needs a worker (torch_remote/providers/ssh.py). It reads commands from standard
# input, prints an answer for each ("ok ..." or "failed ..."), and at last becomes the worker. The script must not
# contain single quotes.
umask 077
root="${XDG_CACHE_HOME:-$HOME/.cache}/torch-remote/bundles"
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null)
echo "torch-remote-bootstrap 1 $(uname -s) $(uname -m) ${glibc#glibc }"

find_torch() {
  for python in python3 python; do
    command -v "$python" >/dev/null 2>&1 || continue
    found=$("$python" -c "
import importlib.metadata, importlib.util, os
if importlib.metadata.version(\"torch\").partition(\"+\")[0] == \"$1\":
    print(os.path.join(os.path.dirname(importlib.util.find_spec(\"torch\").origin), \"lib\"))
" 2>/dev/null) && [ -f "$found/libtorch_cpu.so" ] && echo "$found" && return
  done
}

# The folder of the packages with the libraries of NVIDIA.
find_nvidia() {
  for python in python3 python; do
    command -v "$python" >/dev/null 2>&1 || continue
    found=$("$python" -c "
import glob, importlib.util
spec = importlib.util.find_spec(\"nvidia\")
for folder in spec.submodule_search_locations if spec else []:
    if glob.glob(folder + \"/*/lib/*.so*\"):
        print(folder)
        break
" 2>/dev/null) && [ -n "$found" ] && echo "$found" && return
  done
}

# The worker looks for these packages next to its own folder, where pip installs them. Those of the environment that
# torch_lib belongs to come first.
link_nvidia() {
  case "$1" in */torch/lib) found="${1%/torch/lib}/nvidia" ;; *) found="" ;; esac
  [ -d "$found" ] || found=$(find_nvidia)
  [ -n "$found" ] && ln -sfn "$found" "$root/nvidia"
}

# Copies pieces from standard input: a line with the number of bytes, then the bytes; a size of 0 ends them.
pieces() {
  while read -r size && [ "$size" -gt 0 ]; do
    head -c "$size" || return 1
  done
}

# Unpacks an archive, which gets its final name only when it is complete. Removes leftover parts, and archives that were
# not used for two months.
put() {
  part="$root/$1.part.$$"
  trap "rm -rf \"$part\" \"$part.good\"" EXIT
  mkdir -p "$part" || return 1
  pieces | { gzip -dc && : >"$part.good" || cat >/dev/null; } | { tar -xf - -C "$part" || { cat >/dev/null; false; }; } &&
    [ -f "$part.good" ] && { mv "$part" "$root/$1" 2>/dev/null || [ -d "$root/$1" ]; }
  whole=$?
  rm -rf "$part" "$part.good"
  trap - EXIT
  find "$root" -mindepth 1 -maxdepth 1 \( -name "*.part.*" -mtime +1 -o -mtime +60 \) -exec rm -rf {} + 2>/dev/null
  return $whole
}

while read -r word first rest; do
  case "$word" in
    torch) echo "ok $(find_torch "$first")" ;;
    gpus)
      read -r bundle
      printf "ok %s\\n" "$("$bundle/bin/torch-remote-worker" --list-devices </dev/null)"
      ;;
    have) if [ -d "$root/$first" ]; then touch "$root/$first"; echo "ok $root/$first"; else echo "ok"; fi ;;
    put) if put "$first"; then echo "ok $root/$first"; else echo "failed cannot unpack in $root"; fi ;;
    run)
      read -r bundle
      read -r torch_lib
      export TORCH_REMOTE_PACKAGE="$bundle" TORCH_REMOTE_WORKER_LOG="$first"
      [ -n "$torch_lib" ] && export TORCH_REMOTE_TORCH_LIB="$torch_lib"
      case "$rest" in *"--device cuda"*) link_nvidia "$torch_lib" ;; esac
      echo ok
      exec "$bundle/bin/torch-remote-worker" --stdio $rest ;;
    *) echo "failed $word is not known" ;;
  esac
done
