// SPDX-License-Identifier: MIT
/*
 * env.c - what capi/guest/env.c makes of the environment, by itself.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "guest/env.h"
#include "guest/log.h"
#include "tap.h"

/* text NULL: the variable is not set. */
static void set(const char *name, const char *text)
{
	if (text)
		setenv(name, text, 1);
	else
		unsetenv(name);
}

static bool backend_is(const char *text, const char *want)
{
	const char *got;

	set("GDRCOPY_BACKEND", text);
	got = gdr_env_options().backend;
	return want ? got && !strcmp(got, want) : !got;
}

static bool forces_dmabuf(const char *text)
{
	set("GDRCOPY_USE_DMABUF_MMAP", text);
	return gdr_env_options().force_dmabuf;
}

static bool level_is(const char *enabled, const char *wanted, int level)
{
	set("GDRCOPY_ENABLE_LOGGING", enabled);
	set("GDRCOPY_LOG_LEVEL", wanted);
	return gdr_env_log_level() == level && gdr_env_options().log_level == level;
}

static void options(struct tap *t)
{
	tap_ok(t, backend_is(NULL, NULL) && backend_is("", NULL) && backend_is("rm", "rm"), "the backend");
	tap_ok(t, !forces_dmabuf(NULL) && !forces_dmabuf("") && !forces_dmabuf("2") && forces_dmabuf("1"),
	       "dmabuf");
	set("GDRCOPY_COPY_IMPL", NULL);
	tap_ok(t, !gdr_env_options().copy_impl, "no copy routine");
	set("GDRCOPY_COPY_IMPL", "portable");
	tap_ok(t, !strcmp(gdr_env_options().copy_impl, "portable"), "a copy routine");
	set("GDRCOPY_COPY_IMPL", "");
	tap_ok(t, !strcmp(gdr_env_options().copy_impl, ""), "an empty name of a copy routine is a name");
	tap_ok(t, level_is(NULL, NULL, GDR_LOG_OFF) && level_is(NULL, "1", GDR_LOG_OFF), "no log");
	tap_ok(t, level_is("", NULL, GDR_LOG_ERROR) && level_is("0", "4", GDR_LOG_ERROR), "errors are logged");
	tap_ok(t, level_is("1", "1", GDR_LOG_DEBUG) && level_is("1", "3", GDR_LOG_WARN), "a level");
	tap_ok(t, level_is("1", "0", GDR_LOG_DEBUG) && level_is("1", "-7", GDR_LOG_DEBUG) &&
	       level_is("1", "", GDR_LOG_DEBUG) && level_is("1", "all", GDR_LOG_DEBUG), "below the least level: all lines");
	tap_ok(t, level_is("1", "5", GDR_LOG_OFF) && level_is("1", "11", GDR_LOG_OFF) &&
	       level_is("1", "99999999999999999999", GDR_LOG_OFF), "above the greatest: none");
	tap_ok(t, level_is("1", " 2nd", GDR_LOG_INFO), "digits count up to what is no digit");
}

int main(void)
{
	struct tap t = { 0, 0, 0 };

	options(&t);
	return tap_done(&t);
}
