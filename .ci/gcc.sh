#!/usr/bin/env bash
# Prints a g++ of version 13 or newer: one that is here, else a copy unpacked beside the system (Debian 12 packages none).
#   bash .ci/gcc.sh FOLDER
# Nothing outside FOLDER is written and no root is needed. The folder must stay where it is: its wrappers hold its path.
set -euo pipefail
folder=$(realpath -m "${1:?usage: gcc.sh FOLDER}")
version=13
triple=x86_64-linux-gnu

links_a_program() {
    local major
    major=$("$1" -dumpfullversion 2>/dev/null | cut -d. -f1) || return 1
    [ "${major:-0}" -ge 13 ] && echo 'int main() {}' | "$1" -x c++ - -o /dev/null 2>/dev/null
}

for candidate in "${CXX:-}" g++ g++-15 g++-14 g++-13; do
    if [ -n "$candidate" ] && links_a_program "$candidate"; then command -v "$candidate" && exit 0; fi
done
if [ -e "$folder/complete" ]; then echo "$folder/bin/g++" && exit 0; fi

root=$folder/root
rm -rf "$folder" && mkdir -p "$folder"/{bin,root,debs,empty,state/lists/partial,cache/archives/partial}

# A private apt: the host's own mirror and keyring, the next Debian release, nothing installed.
mirror=$({ cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true; } |
    awk '/^(URIs:|deb )/ && !/security/ { for (i = 1; i <= NF; i++) if ($i ~ "://") { if (!seen++) print $i } }')
[ -n "$mirror" ] || { echo "gcc.sh: no Debian mirror is configured, and no g++ >= 13 is here" >&2; exit 1; }
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" >"$folder/sources.list"
: >"$folder/status"
cat >"$folder/apt.conf" <<END
Dir::State "$folder/state"; Dir::State::status "$folder/status"; Dir::Cache "$folder/cache";
Dir::Etc::sourcelist "$folder/sources.list"; Dir::Etc::sourceparts "$folder/empty"; Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "$folder/empty"; APT::Sandbox::User ""; Acquire::Languages "none"; Acquire::Retries "3";
END
export APT_CONFIG=$folder/apt.conf
apt-get -qq update >&2
dash=${triple//_/-}
(cd "$folder/debs" && apt-get -qq download "gcc-$version-$dash" "g++-$version-$dash" "cpp-$version-$dash" \
    "libgcc-$version-dev" "libstdc++-$version-dev" "binutils-$dash" libbinutils libctf0 libctf-nobfd0 libsframe1 \
    libjansson4 libc6 libgmp10 libmpfr6 libmpc3 libisl23 zlib1g libzstd1 >/dev/null
    for deb in *.deb; do dpkg-deb -x "$deb" "$root"; done)

# Each program runs under the loader and libraries that it came with; the host's never see it.
loader=$root/usr/lib/$triple/ld-linux-x86-64.so.2
inner=$root/usr/libexec/gcc/$triple/$version
wrap() {
    mv "$1" "$1.bin"
    printf '#!/bin/sh\nexec "%s" --argv0 "%s" --library-path "%s" "%s" "$@"\n' \
        "$loader" "$1" "$root/usr/lib/$triple" "$1.bin" >"$1"
    chmod 755 "$1"
}
for program in "$inner"/{cc1,cc1plus,collect2,lto-wrapper,lto1} "$root/usr/bin/$triple"-{g++,gcc,cpp}-$version \
    "$root/usr/bin/$triple"-{as,ld.bfd,ar,ranlib,nm,objcopy,strip}; do
    if [ -f "$program" ] && [ ! -L "$program" ]; then wrap "$program"; fi
done
ln -sf "$root/usr/bin/$triple-as" "$inner/as"
ln -sf "$root/usr/bin/$triple-ld.bfd" "$inner/ld"
for name in g++ gcc; do ln -sf "$root/usr/bin/$triple-$name-$version" "$folder/bin/$name"; done

# What is built must run on the host's libraries: libstdc++ is linked in, and lacks one newer libc function there.
library=$root/usr/lib/gcc/$triple/$version
rm -f "$library/libstdc++.so"
cat >"$folder/strto.c" <<'END'
#include <stdlib.h>
#define FORWARD(type, name) \
  __attribute__((weak, visibility("hidden"))) type __isoc23_##name(const char* s, char** e, int b) { return name(s, e, b); }
FORWARD(long, strtol)
FORWARD(unsigned long, strtoul)
FORWARD(long long, strtoll)
FORWARD(unsigned long long, strtoull)
END
"$folder/bin/gcc" -O2 -fPIC -std=c11 -c "$folder/strto.c" -o "$folder/strto.o"
"$root/usr/bin/$triple-ar" rcs "$library/libstdc++.a" "$folder/strto.o"

# Only a compiler whose program ran here counts.
printf '%s\n' '#include <format>' '#include <iostream>' '#include <stdexcept>' '#include <string>' \
    'int main() { try { throw std::runtime_error(std::format("{:>4}", 42)); }' \
    'catch (std::exception& e) { std::cout << e.what() << std::stoul("17"); } }' >"$folder/try.cpp"
"$folder/bin/g++" -std=c++20 -O1 "$folder/try.cpp" -o "$folder/try" && [ "$("$folder/try")" = "  4217" ]
rm -rf "$folder"/{debs,cache,state,try,try.cpp} "$root/usr/share"
touch "$folder/complete"
echo "$folder/bin/g++"
