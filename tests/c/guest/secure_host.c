// SPDX-License-Identifier: MIT
/*
 * secure_host.c LIBRARY - a privileged program, as a set-user-ID one is: it opens
 * the library, and says what became of it by its exit status.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/auxv.h>

int main(int argc, char **argv)
{
	void *(*open_library)(void);
	void *lib;

	if (argc < 2)
		return 2;
	if (!getauxval(AT_SECURE))
		return 3;
	lib = dlopen(argv[1], RTLD_NOW);
	if (!lib)
		return 4;
	*(void **)&open_library = dlsym(lib, "gdr_open");
	if (!open_library)
		return 5;
	/* A backend that is not there would be EINVAL. */
	if (!open_library() && errno == EINVAL)
		return 6;
	return 0;
}
