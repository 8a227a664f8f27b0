// SPDX-License-Identifier: MIT
/* capi/guest/watch.c as a shared object of its own, linked as libgdrapi is. */
#include "guest/watch.h"

typeof(gdr_watch_export) watch_copy;

__attribute__((visibility("default")))
int watch_copy(const struct gdr_watch_slot *s, void *export, uint64_t addr, uint64_t size, struct gdr_watch *w)
{
	return gdr_watch_export(s, export, addr, size, w);
}
