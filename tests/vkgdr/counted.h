// SPDX-License-Identifier: MIT
/* Before all else of vkgdr.c, for vkgdr_steps: the loader's and the heap's functions are the test's. */
#include <dlfcn.h>
#include <stdlib.h>

void *counted_dlopen(const char *name, int flags);
int counted_dlclose(void *library);
void *counted_dlsym(void *library, const char *name);
void *counted_calloc(size_t n, size_t size);
void *counted_malloc(size_t size);
void counted_free(void *mem);

#define dlopen counted_dlopen
#define dlclose counted_dlclose
#define dlsym counted_dlsym
#define calloc counted_calloc
#define malloc counted_malloc
#define free counted_free
