#!/bin/bash
# SPDX-License-Identifier: MIT
#
# containers.sh - packaging/containers: the CDI spec by CDI's own JSON schema, the pods by
# the schema that Kubernetes' API server gives. Both schemas are in Go modules, of fixed
# versions, whose sums Go checks.
set -uo pipefail
# shellcheck source=tests/packages/lib.sh
. "$(dirname "$0")/lib.sh"
for python in python3 /usr/bin/python3 ''; do
	if "$python" -c 'import jsonschema, yaml' 2>/dev/null; then break; fi
done
[ -n "$python" ] ||
	die "Python's jsonschema or yaml is missing. Debian: apt-get install python3-jsonschema python3-yaml"

cdi=tags.cncf.io/container-device-interface@v0.8.1
kubernetes=sigs.k8s.io/kubectl-validate@v0.0.4

# module NAME@VERSION: the folder of that Go module.
module() {
	(cd "$work" && ${GO:-go} mod download -json "$1") | sed -n 's/^\t"Dir": "\(.*\)".*/\1/p'
}

cdi_dir=$(module "$cdi")
[ -n "$cdi_dir" ] || die "the module $cdi was not fetched"
kubernetes_dir=$(module "$kubernetes")
[ -n "$kubernetes_dir" ] || die "the module $kubernetes was not fetched"
exec "$python" "$here/tests/packages/containers.py" "$here/packaging/containers" \
	"$cdi_dir/schema" "$kubernetes_dir/pkg/openapiclient/builtins/1.29/api/v1.json"
