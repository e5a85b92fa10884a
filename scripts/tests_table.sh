# A function for scripts that run tests and print a table of the results. Such a script sources this file.
#
# tests_table TITLE [OPTIONS OF CARGO TEST] [-- FILTER...]
# Runs tests, and prints a table with a row for each test. The name of a test says what it checks. The output of the tests follows
# the table. The script fails if a test fails, or if a filter finds no test.
tests_table() {
  local title=$1 log options=() filters=() filter
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    options+=("$1")
    shift
  done
  [ $# -eq 0 ] || shift
  filters=("$@")
  log=$(mktemp)
  if ! cargo test --locked "${options[@]}" -- --show-output "${filters[@]}" >"$log"; then
    cat "$log" >&2
    rm "$log"
    return 1
  fi
  for filter in "" "${filters[@]}"; do
    if ! grep -q "^test .*$filter.* ok$" "$log"; then
      echo "no test has a name that contains '$filter'" >&2
      rm "$log"
      return 1
    fi
  done
  printf '\n### %s\n\n| what is checked (one test in each row) | result |\n|---|---|\n' "$title"
  awk '/^test .* ok$/ { name = $0; sub(/^test /, "", name); sub(/ \.\.\. ok$/, "", name)
    gsub("::", ": ", name); gsub("_", " ", name); print "| " name " | passed |" }' "$log"
  awk '/^---- .* stdout ----$/ { name = $2; print ""; print "What `" name "` printed:"; print ""; shown = 1; next }
    /^(successes|failures):$/ { shown = 0 } shown && NF { print "    " $0 }' "$log"
  rm "$log"
}
