package main

// littleSpaceText is the report where the Go runtime may have too little address space to
// start. The program's entry, entry_GOARCH.s, prints it.
var littleSpaceText = `FAIL  limit-as: A process may have less than 1536 MiB of address space. gdr_open of this library takes that much, and CUDA more. Nothing else was asked.
      do: Raise the limit: ulimit -v unlimited, LimitAS of systemd, the batch system's limit of virtual memory.

libgdrapi does not work here. Begin with limit-as: A process may have less than 1536 MiB of address space.
`
