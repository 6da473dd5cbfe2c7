#!/usr/bin/env bash
# Publish docs/_build/html on the branch gh-pages, a folder per version: `latest` is main's, `stable` the newest release's.
# Usage: .github/publish_site.sh latest | v1.2.3
set -euo pipefail
version="$1"
cd "$(dirname "$0")/.."
branch=gh-pages
work="$(mktemp -d)"
trap 'git worktree remove --force "$work"' EXIT
git worktree add --quiet --detach "$work"
if git fetch --quiet origin "+$branch:refs/remotes/origin/$branch" 2>/dev/null; then
    git -C "$work" checkout --quiet -B "$branch" "origin/$branch"
else # the first time
    git -C "$work" checkout --quiet --orphan "$branch"
    git -C "$work" rm -rf --quiet .
fi
folders=("$version")
[ "$version" = latest ] || folders+=(stable)
for folder in "${folders[@]}"; do
    rm -rf "${work:?}/$folder"
    cp -r docs/_build/html "$work/$folder"
done
first=latest
[ ! -d "$work/stable" ] || first=stable
touch "$work/.nojekyll" # folders that begin with _ are served too
echo "<meta http-equiv=\"refresh\" content=\"0; url=$first/index.html\">" > "$work/index.html"
git -C "$work" add --all
git -C "$work" diff --cached --quiet && exit 0
git -C "$work" -c user.name=release -c user.email=release@invalid commit --quiet --message "Site of $version"
git -C "$work" push --quiet origin "$branch"
