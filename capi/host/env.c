// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "env.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../copy/direct.h"
#include "../copy/pool.h"
#include "log.h"

enum variable {
	BACKEND, DMABUF_MMAP, LOGGING, LOG_LEVEL, VK_FILES, VK_FILES_OLD,
	COPY, COPY_IMPL,
	COPY_SPIN, READ_THREADS, WRITE_THREADS, DMA_READ, DMA_WRITE,
};

/*
 * Every variable. gdrapi(3) describes them, and tests/man/api.sh compares the two.
 *
 * guarded: a privileged process ignores the variable. Its value names what is loaded or
 * written, and it comes from the caller of the process.
 */
static const struct {
	const char *name;
	const char *want;	/* what the value must be; NULL: a bad value is ignored */
	bool guarded;
	uint64_t least, most, unset;	/* of a number; unset or empty is the last one */
} variables[] = {
	[BACKEND] = { "GDRCOPY_BACKEND", NULL, true, 0, 0, 0 },
	[DMABUF_MMAP] = { "GDRCOPY_USE_DMABUF_MMAP", NULL, true, 0, 0, 0 },
	[LOGGING] = { "GDRCOPY_ENABLE_LOGGING", NULL, true, 0, 0, 0 },
	[LOG_LEVEL] = { "GDRCOPY_LOG_LEVEL", NULL, true, 0, 0, 0 },
	[VK_FILES] = { "VK_DRIVER_FILES", NULL, true, 0, 0, 0 },
	[VK_FILES_OLD] = { "VK_ICD_FILENAMES", NULL, true, 0, 0, 0 },
	[COPY] = { "GDRCOPY_COPY", "\"caller\" or \"auto\"", false, 0, 0, 0 },
	[COPY_IMPL] = { "GDRCOPY_COPY_IMPL", "a copy routine that this CPU can run", false, 0, 0, 0 },
	[COPY_SPIN] = { "GDRCOPY_COPY_SPIN", "a number of microseconds up to 1000000000, or \"forever\"", false,
			0, COPY_SPIN_US_MAX, COPY_SPIN_UNSET },
	[READ_THREADS] = { "GDRCOPY_READ_THREADS", "a number from 1 to 64", false, 1, COPY_THREADS_MAX, 0 },
	[WRITE_THREADS] = { "GDRCOPY_WRITE_THREADS", "a number from 1 to 64", false, 1, COPY_THREADS_MAX, 0 },
	[DMA_READ] = { "GDRCOPY_DMA_READ", "a number of bytes, from 1", false, 1, SIZE_MAX, SIZE_MAX },
	[DMA_WRITE] = { "GDRCOPY_DMA_WRITE", "a number of bytes, from 1", false, 1, SIZE_MAX, SIZE_MAX },
};

_Static_assert(COPY_THREADS_MAX == 64, "what READ_THREADS and WRITE_THREADS must be");
_Static_assert(COPY_SPIN_US_MAX == 1000000000, "what COPY_SPIN must be");

static const char *value_of(enum variable v)
{
	return variables[v].guarded ? secure_getenv(variables[v].name) : getenv(variables[v].name);
}

/* NULL for an empty value as well. */
static const char *text_of(enum variable v)
{
	const char *text = value_of(v);

	return text && *text ? text : NULL;
}

int gdr_env_log_level(void)
{
	const char *wanted = value_of(LOG_LEVEL);
	long level = wanted ? strtol(wanted, NULL, 10) : GDR_LOG_ERROR;

	if (!value_of(LOGGING) || level > GDR_LOG_ERROR)
		return GDR_LOG_OFF;
	return level < GDR_LOG_DEBUG ? GDR_LOG_DEBUG : (int)level;
}

struct gdr_options gdr_env_options(void)
{
	const char *dmabuf = value_of(DMABUF_MMAP);
	const char *vk_files = value_of(VK_FILES);

	return (struct gdr_options){
		.backend = text_of(BACKEND),
		.vk_driver_files = vk_files ? vk_files : value_of(VK_FILES_OLD),
		.force_dmabuf = dmabuf && !strcmp(dmabuf, "1"),
		.log_level = gdr_env_log_level(),
	};
}

/* Digits only. */
static bool read_number(enum variable v, uint64_t *n)
{
	const char *text = text_of(v);
	char *end;

	*n = variables[v].unset;
	if (!text)
		return true;
	if (v == COPY_SPIN && !strcmp(text, "forever")) {
		*n = COPY_SPIN_FOREVER;
		return true;
	}
	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*n = strtoull(text, &end, 10);
	return !*end && !errno && *n >= variables[v].least && *n <= variables[v].most;
}

static int no_good(enum variable v, struct gdr_env_error *error)
{
	*error = (struct gdr_env_error){ variables[v].name, variables[v].want };
	return EINVAL;
}

int gdr_env_copies(struct gdr_copy_env *env, struct gdr_env_error *error)
{
	const char *copy = text_of(COPY), *impl = value_of(COPY_IMPL);
	uint64_t n[DMA_WRITE + 1];

	env->impl = copy_select(impl);
	/* A named routine makes all stores itself, so there are no direct stores. */
	env->direct = !impl && copy_has_direct();
	env->wishes.chooses = copy && !strcmp(copy, "auto");
	if (!env->impl)
		return no_good(COPY_IMPL, error);
	if (copy && !env->wishes.chooses && strcmp(copy, "caller"))
		return no_good(COPY, error);
	for (enum variable v = COPY_SPIN; v <= DMA_WRITE; v++)
		if (!read_number(v, &n[v]))
			return no_good(v, error);
	env->spin_us = n[COPY_SPIN];
	env->wishes.threads[0] = n[READ_THREADS];
	env->wishes.threads[1] = n[WRITE_THREADS];
	env->wishes.least_dma[0] = n[DMA_READ];
	env->wishes.least_dma[1] = n[DMA_WRITE];
	return 0;
}
