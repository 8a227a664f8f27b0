/* SPDX-License-Identifier: MIT */
/* next.h - for preloads: the next library's function of the same name. */
#ifndef TEST_NEXT_H
#define TEST_NEXT_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void *next_of(const char *name)
{
	void *f = dlsym(RTLD_NEXT, name);

	if (!f) {
		fprintf(stderr, "preload: %s\n", dlerror());
		abort();
	}
	return f;
}

/* Makes next that function. ISO C has no cast from an object pointer. */
#define NEXT(name)						\
	static __typeof__(name) *next;				\
	do {							\
		if (!next) {					\
			void *f_ = next_of(#name);		\
								\
			memcpy(&next, &f_, sizeof(next));	\
		}						\
	} while (0)

#endif
