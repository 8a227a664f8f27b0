// SPDX-License-Identifier: MIT
/*
 * env.c - what is asked of the environment.
 *
 * A privileged process ignores each variable that is read by secure_getenv: its value names what
 * is loaded or written, and it comes from the caller of the process.
 */
#define _GNU_SOURCE
#include "env.h"

#include <stdlib.h>
#include <string.h>

#include "log.h"

int gdr_env_log_level(void)
{
	const char *wanted = secure_getenv("GDRCOPY_LOG_LEVEL");
	long level = wanted ? strtol(wanted, NULL, 10) : GDR_LOG_ERROR;

	if (!secure_getenv("GDRCOPY_ENABLE_LOGGING") || level > GDR_LOG_ERROR)
		return GDR_LOG_OFF;
	return level < GDR_LOG_DEBUG ? GDR_LOG_DEBUG : (int)level;
}

struct gdr_options gdr_env_options(void)
{
	const char *backend = secure_getenv("GDRCOPY_BACKEND");
	const char *dmabuf = secure_getenv("GDRCOPY_USE_DMABUF_MMAP");

	return (struct gdr_options){
		.backend = backend && *backend ? backend : NULL,
		.copy_impl = getenv("GDRCOPY_COPY_IMPL"),
		.force_dmabuf = dmabuf && !strcmp(dmabuf, "1"),
		.log_level = gdr_env_log_level(),
	};
}
