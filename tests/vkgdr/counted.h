// SPDX-License-Identifier: MIT
/* Before all else of vkgdr.c, for vkgdr_steps: the loader's functions are the test's. */
#include <dlfcn.h>

void *counted_dlopen(const char *name, int flags);
int counted_dlclose(void *library);
void *counted_dlsym(void *library, const char *name);

#define dlopen counted_dlopen
#define dlclose counted_dlclose
#define dlsym counted_dlsym
