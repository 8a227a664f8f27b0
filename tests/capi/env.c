// SPDX-License-Identifier: MIT
/*
 * env.c - what capi/host/env.c makes of the environment, by itself.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "copy/direct.h"
#include "copy/pool.h"
#include "host/env.h"
#include "host/log.h"
#include "tap.h"

static bool privileged;

/* In place of the C library's: the program is privileged (AT_SECURE) when a test says so. */
char *secure_getenv(const char *name)
{
	return privileged ? NULL : getenv(name);
}

/* text NULL: the variable is not set. */
static void set(const char *name, const char *text)
{
	if (text)
		setenv(name, text, 1);
	else
		unsetenv(name);
}

/* Whether the variable may be text; if not, the error names it. */
static bool takes(const char *name, const char *text, struct gdr_copy_env *env)
{
	struct gdr_env_error error = { NULL, NULL };
	int rc;

	set(name, text);
	rc = gdr_env_copies(env, &error);
	set(name, NULL);
	if (rc && (rc != EINVAL || !error.name || strcmp(error.name, name) || !error.want))
		abort();
	return !rc;
}

static void bad_values(struct tap *t)
{
	static const struct {
		const char *name, *text;
	} bad[] = {
		{ "GDRCOPY_COPY", "fast" }, { "GDRCOPY_COPY", "AUTO" },
		{ "GDRCOPY_COPY_IMPL", "x" }, { "GDRCOPY_COPY_IMPL", "" },
		{ "GDRCOPY_COPY_SPIN", "x" }, { "GDRCOPY_COPY_SPIN", "-1" },
		{ "GDRCOPY_COPY_SPIN", "1000000001" }, { "GDRCOPY_COPY_SPIN", "5s" },
		{ "GDRCOPY_READ_THREADS", "0" }, { "GDRCOPY_READ_THREADS", "65" },
		{ "GDRCOPY_READ_THREADS", "2x" }, { "GDRCOPY_WRITE_THREADS", "+2" },
		{ "GDRCOPY_WRITE_THREADS", " 2" }, { "GDRCOPY_WRITE_THREADS", "99999999999999999999" },
		{ "GDRCOPY_COPY", "auto " }, { "GDRCOPY_COPY", "0" }, { "GDRCOPY_READ_THREADS", "x" },
		{ "GDRCOPY_DMA_READ", "0" }, { "GDRCOPY_DMA_READ", "-1" }, { "GDRCOPY_DMA_READ", " 2" },
		{ "GDRCOPY_DMA_WRITE", "1k" }, { "GDRCOPY_DMA_WRITE", "99999999999999999999" },
	};
	struct gdr_copy_env env;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		tap_ok(t, !takes(bad[i].name, bad[i].text, &env), "%s=%s is refused",
		       bad[i].name, bad[i].text);
}

static bool is_default(const struct gdr_copy_env *env)
{
	return env->impl && !env->wishes.chooses && env->wishes.threads[0] == 0 && env->wishes.threads[1] == 0 &&
	       env->spin_us == COPY_SPIN_UNSET && env->wishes.least_dma[0] == SIZE_MAX &&
	       env->wishes.least_dma[1] == SIZE_MAX;
}

static void good_values(struct tap *t)
{
	static const char *const may_be_empty[] = {
		"GDRCOPY_COPY", "GDRCOPY_COPY_SPIN", "GDRCOPY_READ_THREADS", "GDRCOPY_WRITE_THREADS",
		"GDRCOPY_DMA_READ", "GDRCOPY_DMA_WRITE",
	};
	struct gdr_copy_env env;

	tap_ok(t, takes("GDRCOPY_COPY", NULL, &env) && is_default(&env), "nothing is set");
	for (size_t i = 0; i < sizeof(may_be_empty) / sizeof(may_be_empty[0]); i++)
		tap_ok(t, takes(may_be_empty[i], "", &env) && is_default(&env), "%s may be empty",
		       may_be_empty[i]);
	tap_ok(t, takes("GDRCOPY_COPY", "auto", &env) && env.wishes.chooses, "GDRCOPY_COPY=auto");
	tap_ok(t, takes("GDRCOPY_COPY", "caller", &env) && !env.wishes.chooses, "GDRCOPY_COPY=caller");
	tap_ok(t, takes("GDRCOPY_COPY_IMPL", "portable", &env) && env.impl == &copy_portable, "a routine");
	tap_ok(t, takes("GDRCOPY_COPY_SPIN", "forever", &env) && env.spin_us == COPY_SPIN_FOREVER, "for ever");
	tap_ok(t, takes("GDRCOPY_COPY_SPIN", "0", &env) && env.spin_us == 0, "not at all");
	tap_ok(t, takes("GDRCOPY_COPY_SPIN", "1000000000", &env) && env.spin_us == 1000000000, "the longest time");
	tap_ok(t, takes("GDRCOPY_READ_THREADS", "64", &env) && env.wishes.threads[0] == 64 && env.wishes.threads[1] == 0,
	       "threads for reads");
	tap_ok(t, takes("GDRCOPY_WRITE_THREADS", "2", &env) && env.wishes.threads[1] == 2 && env.wishes.threads[0] == 0,
	       "threads for writes");
	tap_ok(t, takes("GDRCOPY_DMA_READ", "1", &env) && env.wishes.least_dma[0] == 1 && env.wishes.least_dma[1] == SIZE_MAX, "DMA for reads");
	tap_ok(t, takes("GDRCOPY_DMA_WRITE", "65536", &env) && env.wishes.least_dma[1] == 65536 && env.wishes.least_dma[0] == SIZE_MAX,
	       "DMA for writes");
}

static bool backend_is(const char *text, const char *want)
{
	const char *got;

	set("GDRCOPY_BACKEND", text);
	got = gdr_env_options().backend;
	return want ? got && !strcmp(got, want) : !got;
}

static bool files_are(const char *now, const char *old, const char *want)
{
	const char *got;

	set("VK_DRIVER_FILES", now);
	set("VK_ICD_FILENAMES", old);
	got = gdr_env_options().vk_driver_files;
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

/* A routine that is named makes all stores itself. */
static void direct_stores(struct tap *t)
{
	struct gdr_copy_env env;

	tap_ok(t, takes("GDRCOPY_COPY_IMPL", NULL, &env) && env.direct == copy_has_direct(),
	       "direct stores where the CPU has them");
	tap_ok(t, takes("GDRCOPY_COPY_IMPL", "portable", &env) && !env.direct, "and none by a routine that is named");
}

static void options(struct tap *t)
{
	tap_ok(t, backend_is(NULL, NULL) && backend_is("", NULL) && backend_is("rm", "rm"), "the backend");
	tap_ok(t, !forces_dmabuf(NULL) && !forces_dmabuf("") && !forces_dmabuf("2") && forces_dmabuf("1"),
	       "dmabuf");
	tap_ok(t, files_are(NULL, NULL, NULL) && files_are("a", NULL, "a") && files_are(NULL, "b", "b") &&
	       files_are("a", "b", "a"), "the Vulkan drivers");
	tap_ok(t, level_is(NULL, NULL, GDR_LOG_OFF) && level_is(NULL, "1", GDR_LOG_OFF), "no log");
	tap_ok(t, level_is("", NULL, GDR_LOG_ERROR) && level_is("0", "4", GDR_LOG_ERROR), "errors are logged");
	tap_ok(t, level_is("1", "1", GDR_LOG_DEBUG) && level_is("1", "3", GDR_LOG_WARN), "a level");
	tap_ok(t, level_is("1", "0", GDR_LOG_DEBUG) && level_is("1", "-7", GDR_LOG_DEBUG) &&
	       level_is("1", "", GDR_LOG_DEBUG) && level_is("1", "all", GDR_LOG_DEBUG), "below the least level: all lines");
	tap_ok(t, level_is("1", "5", GDR_LOG_OFF) && level_is("1", "11", GDR_LOG_OFF) &&
	       level_is("1", "99999999999999999999", GDR_LOG_OFF), "above the greatest: none");
	tap_ok(t, level_is("1", " 2nd", GDR_LOG_INFO), "digits count up to what is no digit");
}

/* What decides what is loaded or logged does not count in a privileged program. */
static void privileged_program(struct tap *t)
{
	privileged = true;
	tap_ok(t, backend_is("rm", NULL), "privileged: no backend is forced");
	tap_ok(t, !forces_dmabuf("1"), "privileged: nor dmabuf");
	tap_ok(t, files_are("a", NULL, NULL) && files_are(NULL, "b", NULL), "privileged: no Vulkan driver is named");
	tap_ok(t, level_is("1", "1", GDR_LOG_OFF), "privileged: nothing is logged");
	privileged = false;
}

int main(void)
{
	struct tap t = { 0, 0, 0 };

	unsetenv("GDRCOPY_COPY_IMPL");
	good_values(&t);
	bad_values(&t);
	direct_stores(&t);
	options(&t);
	privileged_program(&t);
	return tap_done(&t);
}
