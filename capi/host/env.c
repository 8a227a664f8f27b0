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
	COPY, COPY_IMPL, COPY_SPIN, READ_THREADS, WRITE_THREADS, DMA_READ, DMA_WRITE,
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
} variables[] = {
	[BACKEND] = { "GDRCOPY_BACKEND", NULL, true },
	[DMABUF_MMAP] = { "GDRCOPY_USE_DMABUF_MMAP", NULL, true },
	[LOGGING] = { "GDRCOPY_ENABLE_LOGGING", NULL, true },
	[LOG_LEVEL] = { "GDRCOPY_LOG_LEVEL", NULL, true },
	[VK_FILES] = { "VK_DRIVER_FILES", NULL, true },
	[VK_FILES_OLD] = { "VK_ICD_FILENAMES", NULL, true },
	[COPY] = { "GDRCOPY_COPY", "\"caller\" or \"auto\"", false },
	[COPY_IMPL] = { "GDRCOPY_COPY_IMPL", "a copy routine that this CPU can run", false },
	[COPY_SPIN] = { "GDRCOPY_COPY_SPIN", "a number of microseconds up to 1000000000, or \"forever\"", false },
	[READ_THREADS] = { "GDRCOPY_READ_THREADS", "a number from 1 to 64", false },
	[WRITE_THREADS] = { "GDRCOPY_WRITE_THREADS", "a number from 1 to 64", false },
	[DMA_READ] = { "GDRCOPY_DMA_READ", "a number of bytes, from 1", false },
	[DMA_WRITE] = { "GDRCOPY_DMA_WRITE", "a number of bytes, from 1", false },
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

/* Digits only, from least to most. if_unset is for a variable that is not set or empty. */
static bool read_number(enum variable v, uint64_t least, uint64_t most, uint64_t if_unset,
			uint64_t *n)
{
	const char *text = text_of(v);
	char *end;

	*n = if_unset;
	if (!text)
		return true;
	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*n = strtoull(text, &end, 10);
	return !*end && !errno && *n >= least && *n <= most;
}

static bool read_threads(enum variable v, unsigned int *threads)
{
	uint64_t n;
	bool good = read_number(v, 1, COPY_THREADS_MAX, 0, &n);

	*threads = (unsigned int)n;
	return good;
}

static bool read_bytes(enum variable v, size_t *bytes)
{
	uint64_t n;
	bool good = read_number(v, 1, SIZE_MAX, SIZE_MAX, &n);

	*bytes = n;
	return good;
}

static bool read_spin(uint64_t *us)
{
	const char *text = text_of(COPY_SPIN);

	if (text && !strcmp(text, "forever")) {
		*us = COPY_SPIN_FOREVER;
		return true;
	}
	return read_number(COPY_SPIN, 0, COPY_SPIN_US_MAX, COPY_SPIN_UNSET, us);
}

static bool read_choice(bool *choose)
{
	const char *text = text_of(COPY);

	*choose = text && !strcmp(text, "auto");
	return !text || *choose || !strcmp(text, "caller");
}

static int no_good(enum variable v, struct gdr_env_error *error)
{
	*error = (struct gdr_env_error){ variables[v].name, variables[v].want };
	return EINVAL;
}

int gdr_env_copies(struct gdr_copy_env *env, struct gdr_env_error *error)
{
	env->impl = copy_select(value_of(COPY_IMPL));
	if (!env->impl)
		return no_good(COPY_IMPL, error);
	/* A named routine makes all stores itself, so there are no direct stores. */
	env->direct = !value_of(COPY_IMPL) && copy_has_direct();
	if (!read_threads(READ_THREADS, &env->wishes.threads[0]))
		return no_good(READ_THREADS, error);
	if (!read_threads(WRITE_THREADS, &env->wishes.threads[1]))
		return no_good(WRITE_THREADS, error);
	if (!read_spin(&env->spin_us))
		return no_good(COPY_SPIN, error);
	if (!read_bytes(DMA_READ, &env->wishes.least_dma[0]))
		return no_good(DMA_READ, error);
	if (!read_bytes(DMA_WRITE, &env->wishes.least_dma[1]))
		return no_good(DMA_WRITE, error);
	if (!read_choice(&env->wishes.chooses))
		return no_good(COPY, error);
	return 0;
}
