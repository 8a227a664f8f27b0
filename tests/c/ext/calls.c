// SPDX-License-Identifier: MIT
/*
 * ext/calls.c - which CUDA calls each function makes, against the table of
 * docs/consumers.md: the simulated driver notes what is called. --long prints what was.
 */
#include "guest/cuda.h"

#define BYTES (2 * MIB)
#define TABLE "docs/consumers.md"
#define HEAD "| function | gdrdrv | dmabuf | rm |"

static unsigned int (*called)(char *names, size_t size);
static char backend[16];

/*
 * The cell of a function and this backend in the table, with a space before and after each
 * word. A row has a function, or several.
 */
static void read_cell(const char *function, char *cell, size_t size)
{
	static const char *const columns[] = { "function", "gdrdrv", "dmabuf", "rm" };
	char line[4096], want[64];
	bool in_table = false;
	FILE *f = fopen(TABLE, "re");

	if (!f)
		note(TABLE ": %s; run this at the top of the tree", strerror(errno));
	expect(f != NULL);
	snprintf(want, sizeof(want), "`%s`", function);
	*cell = '\0';
	while (!*cell && fgets(line, sizeof(line), f)) {
		char *rest = line + 1, *text;

		in_table = (in_table || !strncmp(line, HEAD, strlen(HEAD))) && line[0] == '|';
		if (!in_table)
			continue;
		text = strsep(&rest, "|");
		if (!text || !strstr(text, want))
			continue;
		for (size_t i = 1; i < 4 && (text = strsep(&rest, "|")); i++)
			if (!strcmp(columns[i], backend))
				snprintf(cell, size, " %s ", text);
	}
	fclose(f);
	for (char *p = cell; *p; p++)
		if (*p == '`' || *p == ',')
			*p = ' ';
	if (!*cell)
		note("%s is not in the table of " TABLE, function);
	expect(*cell);
}

static bool has_word(const char *text, const char *word)
{
	char padded[96];

	snprintf(padded, sizeof(padded), " %.90s ", word);
	return strstr(text, padded);
}

/* What a set of the table stands for. The text behind its name is up to the line's end. */
static void add_sets(char *cell, size_t size)
{
	char line[4096], sets[1024];
	FILE *f = fopen(TABLE, "re");

	expect(f != NULL);
	snprintf(sets, sizeof(sets), "%s", cell);
	while (fgets(line, sizeof(line), f)) {
		char *name = line + 4, *end;

		if (strncmp(line, "- **", 4) || !(end = strstr(name, "**: ")))
			continue;
		*end = '\0';
		if (has_word(sets, name)) {
			size_t used = strlen(cell);

			snprintf(cell + used, size - used, "%s ", end + 3);
		}
	}
	fclose(f);
	for (char *p = cell; *p; p++)
		if (*p == '`' || *p == ',' || *p == '.' || *p == '\n')
			*p = ' ';
}

static void forget(void)
{
	char none[1];

	called(none, 0);
}

/* Each function that was called since is in the table. */
static void check(const char *function)
{
	char names[4096], cell[8192], *rest = names, *name;

	called(names, sizeof(names));
	read_cell(function, cell, sizeof(cell));
	add_sets(cell, sizeof(cell));
	if (guest_long)
		note("%s: %s", function, *names ? names : "none");
	while ((name = strsep(&rest, " "))) {
		if (!*name || has_word(cell, name))
			continue;
		note("%s calls %s on %s, which the table does not have", function, name, backend);
		expect(false);
	}
}

#define CALL(function, ...) do {			\
	forget();					\
	expect_is(function(__VA_ARGS__), 0);		\
	check(#function);				\
} while (0)

static void life(gdr_t g, unsigned long p)
{
	unsigned char *bytes = malloc(BYTES);
	gdr_info_t info;
	gdr_mh_t mh, second;
	uint64_t offset, length;
	unsigned int count;
	void *va, *va2;
	int v, flag, fd;

	expect(bytes != NULL);
	memset(bytes, 1, BYTES);
	for (int i = 0; i < 3; i++) {
		CALL(gdr_pin_bytes, g, p + 8, 8, 0, &mh);
		CALL(gdr_unpin_buffer, g, mh);
		/* What is not made of whole GPU pages is the caller's own, too. */
		forget();
		expect_is(gdr_pin_buffer(g, p, BYTES - 8, 0, 0, &mh), 0);
		check("gdr_pin_bytes");
		CALL(gdr_unpin_buffer, g, mh);
		CALL(gdr_pin_buffer, g, p, BYTES, 0, 0, &mh);
		CALL(gdr_map, g, mh, &va, BYTES);
		CALL(gdr_get_info, g, mh, &info);
		CALL(gdr_get_callback_flag, g, mh, &flag);
		CALL(gdr_export_fd, g, mh, 0, &fd);
		if (!strcmp(backend, "rm")) {
			CALL(gdr_get_object, g, mh, &offset, &length, &count);
			CALL(gdr_pin_fd, g, fd, 0, &second);
			CALL(gdr_map, g, second, &va2, BYTES);
			CALL(gdr_unpin_buffer, g, second);
		}
		close(fd);
		CALL(gdr_get_attribute, g, GDR_ATTR_USE_PERSISTENT_MAPPING, &v);
		CALL(gdr_copy_to_mapping, mh, va, bytes, BYTES);
		CALL(gdr_copy_from_mapping, mh, bytes, va, BYTES);
		CALL(gdr_unmap, g, mh, va, BYTES);
		CALL(gdr_unpin_buffer, g, mh);
	}
	free(bytes);
}

static void functions(void)
{
	gdr_cache_t cache;
	int major, minor, fd;
	struct cuda_dl cu;
	gdr_mh_t mh;
	gdr_mem_t mem;
	unsigned long p;
	cu_ptr plain;
	size_t size;
	gdr_t g;
	void *va;

	needs_doubles("a real driver does not say what is called");
	start_current(&cu);
	called = need_symbol("cuda_sim_called");
	snprintf(backend, sizeof(backend), "%s", getenv("GDRCOPY_BACKEND") ? getenv("GDRCOPY_BACKEND") : "rm");
	forget();
	g = open_or_fail();
	check("gdr_open");
	expect_is(gdr_get_backend(g, backend, sizeof(backend)), 0);
	CALL(gdr_driver_get_version, g, &major, &minor);
	CALL(gdr_mem_alloc, g, 0, BYTES, 0, &mem);
	CALL(gdr_mem_get_device_ptr, g, mem, &p, &size);
	life(g, p);
	expect_is(cu.mem_alloc(&plain, BYTES), 0);
	life(g, plain);
	p = plain;
	CALL(gdr_cache_open, g, 64 * MIB, 0, &cache);
	for (int i = 0; i < 3; i++) {
		CALL(gdr_cache_get, cache, p, BYTES, &mh, &va);
		CALL(gdr_cache_put, cache, mh);
	}
	CALL(gdr_cache_flush, cache);
	CALL(gdr_cache_close, cache);
	CALL(gdr_mem_export_dmabuf, g, mem, 0, &fd);
	close(fd);
	CALL(gdr_mem_free, g, mem);
	CALL(gdr_close, g);
}

const struct guest_case cases[] = {
	{ "what each function calls", functions, 30, 30 },
	{ 0 }
};
