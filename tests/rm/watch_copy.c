// SPDX-License-Identifier: MIT
/* capi/host/watch.c as a shared object of its own, linked as libgdrapi is. */
#include "host/watch.h"

int watch_copy(void *export, uint64_t addr, uint64_t size, struct gdr_watch *w);

__attribute__((visibility("default")))
int watch_copy(void *export, uint64_t addr, uint64_t size, struct gdr_watch *w)
{
	return gdr_watch_export(export, addr, size, w);
}
