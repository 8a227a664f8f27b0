/* SPDX-License-Identifier: MIT */
/*
 * sanity/error.c - an open that fails, and one without CUDA.
 */
#include "sanity.h"

static const char *set_env(const char *name, const char *value)
{
	char *old = getenv(name);

	old = old ? strdup(old) : NULL;
	check_eq(value ? setenv(name, value, 1) : unsetenv(name), 0);
	return old;
}

static void errno_open(struct env *e)
{
	static const char *const bad[] = { "nonsense", "GDRDRV", "dmabuf " };
	const char *old = NULL;
	size_t i;

	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const char *was = set_env("GDRCOPY_BACKEND", bad[i]);

		if (i == 0)
			old = was;
		errno = 0;
		check(gdr_open() == NULL);
		check_eq(errno, EINVAL);
	}
	set_env("GDRCOPY_BACKEND", old);
	start(e);
	check_rc(gdr_close(e->g), 0);
	check_rc(gdr_close(e->g), EINVAL);
	check_rc(gdr_close(NULL), EINVAL);
}

/* CUDA is not up: there cannot be any GPU memory. */
static void pin_without_cuda(struct env *e)
{
	gdr_mh_t mh = { 77 };

	e->g = gdr_open();
	check(e->g != NULL);
	check_rc(gdr_pin_buffer(e->g, 0x7f0000000000, GPU_PAGE_SIZE, 0, 0, &mh),
		 EINVAL);
	check_eq(mh.h, 77);
	check_rc(gdr_close(e->g), 0);
}

const struct sanity_case error_cases[] = {
	{ "errno_open", errno_open, BE_ALL, NULL },
	{ "pin_without_cuda", pin_without_cuda, BE_ALL, NULL },
	{ NULL, NULL, 0, NULL }
};
