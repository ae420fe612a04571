#!/bin/sh
# Double of a Hadoop client: its HDFS is the folder `files` beside it. Lines of `log` are its
# commands: action and options. `fail` has two numbers: the commands from the first one up to the
# second one fail, the first of them after a part of its work.
here=${0%/*}
test "$1" = fs || { echo "expected fs, got $1" >&2; exit 9; }
shift
options=
while test "$1" = -D; do
    options="$options $2"
    shift 2
done
action=$1
shift
count=0
test -e "$here/count" && read -r count < "$here/count"
count=$((count + 1))
echo "$count" > "$here/count"
echo "$action$options" >> "$here/log"

# Sets `name` to a path without scheme and host, and `path` to the local file.
remote() {
    name=$1
    case $name in *://*) name=${name#*://}; name=/${name#*/} ;; esac
    path=$here/files$name
}

# Sets `is_down` if this command fails.
is_down=
if test -e "$here/fail"; then
    read -r first last < "$here/fail"
    test "$count" -ge "$first" && test "$count" -lt "$last" && is_down=1
fi
# Ends a command that fails.
check() {
    test -n "$is_down" || return 0
    echo "${action#-}: Call From client to host:9000 failed: Connection refused" >&2
    exit 1
}
# Only the first one does a part of its work.
test "$count" -gt "${first:-0}" && check

case $action in
-ls)
    depth=1
    if test "$1" = -R; then
        depth=99
        shift
    fi
    check
    remote "$1"
    test -d "$path" || { echo "ls: \`$1': No such file or directory" >&2; exit 1; }
    prefix=${1%"$name"}
    find "$path" -mindepth 1 -maxdepth $depth | while read -r found; do
        if test -d "$found"; then kind=drwxr-xr-x size=0; else
            kind=-rw-r--r-- size=$(wc -c < "$found")
        fi
        echo "$kind 3 me group $size 2021-02-22 10:00 $prefix${found#"$here/files"}"
    done
    ;;
-test)
    check
    remote "$2"
    test -e "$path"
    ;;
-mkdir)
    check
    remote "$2"
    mkdir -p "$path"
    ;;
-put)
    shift
    for last in "$@"; do :; done
    remote "$last"
    test -d "$path" || { echo "put: \`$last': No such file or directory" >&2; exit 1; }
    while test $# -gt 1; do
        # Several processes may put files into one folder at the same time.
        if test -d "$1"; then
            into=$path/$(basename "$1")
            mkdir -p "$into" && cp -r "$1"/. "$into" || exit 1
        else
            cp -r "$1" "$path" || exit 1
        fi
        check
        shift
    done
    ;;
-get)
    for last in "$@"; do :; done
    while test $# -gt 1; do
        remote "$1"
        test -e "$path" || { echo "get: \`$1': No such file or directory" >&2; exit 1; }
        cp -r "$path" "$last" || exit 1
        check
        shift
    done
    ;;
-rm)
    shift 2
    for each in "$@"; do
        remote "$each"
        rm -r -f "$path"
        check
    done
    ;;
-mv)
    check
    remote "$1"
    from=$path
    remote "$2"
    test -e "$path" && { echo "mv: \`$2': File exists" >&2; exit 1; }
    mv "$from" "$path"
    ;;
*)
    echo "unknown command $action" >&2
    exit 9
    ;;
esac
