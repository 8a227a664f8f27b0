module gdrapi

go 1.24.0

toolchain go1.27.4

require (
	github.com/ebitengine/purego v0.10.0
	github.com/stretchr/testify v1.12.1
	golang.org/x/sys v0.37.0
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect
