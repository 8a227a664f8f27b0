# SPDX-License-Identifier: MIT
#
# make check-packages [more 20 min] packages built twice, compared, installed, used and removed, as root
# make check-containers [more 5 s] the CDI spec and the pods against their schemas; part of check-packages
# make check-release  [more 1 s] one version everywhere, and what a release refuses
# make check-offline  [more 2 min] the source tarball builds without a network
