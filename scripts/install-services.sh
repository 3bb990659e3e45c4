#!/usr/bin/env bash
# Puts redis-server, rabbitmq-server, postgresql, chromium, libmemcached-tools, prometheus, systemd and
# strace on this machine: tests/integration starts its own of each server and talks to ours with the
# tools, tests/browser looks at a report with the browser, tests/unit/test_packaging.py checks alert
# rules and the unit with promtool and systemd-analyze, and tests/crash follows a server's system calls.
#
# Present: nothing happens. Missing, on a system with apt-get where we are root or sudo asks for
# no password: installed, and kept from running as system services; another apt that runs is waited
# for. Otherwise one line says what is missing, and the exit status is 1.
set -euo pipefail

PROGRAMS=(redis-server rabbitmq-server postgresql chromium libmemcached-tools prometheus systemd strace nodejs npm) # also the names of their packages and services
# Debian keeps rabbitmq-server in sbin, which the PATH of an ordinary user lacks.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

is_there() {
  case $1 in # a browser of this kind may have another name
    chromium) command -v chromium || command -v chromium-browser || command -v google-chrome ;;
    libmemcached-tools) command -v memcstat ;;
    prometheus) command -v promtool ;;
    systemd) command -v systemd-analyze ;;
    nodejs) command -v node ;;
    postgresql) command -v initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb' ;;
    *) command -v "$1" ;;
  esac >/dev/null
}

missing=()
for program in "${PROGRAMS[@]}"; do
  is_there "$program" || missing+=("$program")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi

give_up() {
  echo "missing: ${missing[*]} ($1); install them with your system's packages and try again" >&2
  exit 1
}

as_root=()
command -v apt-get >/dev/null || give_up "there is no apt-get here"
if ((EUID != 0)); then
  sudo -n true 2>/dev/null || give_up "installing them needs root"
  as_root=(sudo -n)
fi

# Debian starts what it installs, unless this file says no. One that is there already is left alone.
policy=${POLICY_RC_D:-/usr/sbin/policy-rc.d}
if [[ ! -e $policy ]]; then
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod 755 "$policy"
fi

# Machines often run an apt of their own after they start.
LOCK_WAIT_S=${LOCK_WAIT_S:-600}

apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout="$LOCK_WAIT_S" "$@" >/dev/null
}

install() {
  apt install --yes --quiet=2 --no-install-recommends "${missing[@]}"
}

# The option above is for the lock of dpkg; nothing makes apt-get wait for that of the package lists.
update() {
  local complaint deadline=$((SECONDS + LOCK_WAIT_S))
  until complaint=$(apt update --quiet=2 2>&1); do
    if [[ $complaint != *"ould not get lock"* ]] || ((SECONDS >= deadline)); then
      echo "$complaint" >&2
      return 1
    fi
    sleep 1
  done
}

echo "installing ${missing[*]} (for the tests)"
# The package lists may be missing or old: fetch them only if the first attempt fails.
install 2>/dev/null || { update && install; } ||
  give_up "apt-get failed"

# The policy above holds for now only; at the next boot they would start.
if [[ -d /run/systemd/system ]]; then
  for service in "${missing[@]}"; do
    [[ $service == systemd ]] || "${as_root[@]}" systemctl disable --quiet "$service" || true
  done
fi
