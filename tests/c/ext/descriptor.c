// SPDX-License-Identifier: MIT
/*
 * ext/descriptor.c - one descriptor for the CPU and for CUDA: what CUDA imports, what it exports, and
 * labels that nobody's library has written. Runs on the simulated drivers and on a GPU.
 */
#include "share.h"

#include <sys/ioctl.h>

#include "rm_uapi.h"

#define GPU_PAGES(bytes) ((bytes) / GPU_PAGE_SIZE)

static int (*import_handle)(cu_mem *, void *, int), (*export_handle)(int *, cu_mem, int, unsigned long long);

static void start(void)
{
	with_context();
	import_handle = need_symbol("cuMemImportFromShareableHandle");
	export_handle = need_symbol("cuMemExportToShareableHandle");
}

/* Memory of cuMemCreate, or that CUDA has imported, and where it is mapped. */
struct mapped {
	cu_mem mem;
	cu_ptr p;
	size_t length;
};

static void map_whole(struct mapped *m, size_t length)
{
	struct cu_access all = { { CU_PLACE_GPU, 0 }, CU_ACCESS_RW };

	m->length = length;
	expect_is(cu.reserve(&m->p, length, 0, 0, 0), 0);
	expect_is(cu.map(m->p, length, 0, m->mem, 0), 0);
	expect_is(cu.set_access(m->p, length, &all, 1), 0);
}

static void import_by_cuda(struct mapped *m, int fd, size_t length)
{
	expect_is(import_handle(&m->mem, (void *)(intptr_t)fd, CU_EXPORT_FD), 0);
	map_whole(m, length);
}

/* Requests of a client of the test's own, for what the library never writes. */
static struct {
	int ctl, gpu;
	uint32_t client, device;
} raw;

static uint32_t raw_control(uint32_t object, uint32_t cmd, void *params, size_t size)
{
	struct rm_control a = { .client = raw.client, .object = object, .cmd = cmd,
				.params = (uintptr_t)params, .params_size = size };

	expect_is(ioctl(raw.ctl, RM_CONTROL, &a), 0);
	return a.status;
}

static uint32_t raw_alloc(uint32_t class, void *params, size_t size)
{
	struct rm_alloc a = { .root = raw.client, .parent = raw.client, .class = class,
			      .params = (uintptr_t)params, .params_size = size };

	expect_is(ioctl(raw.ctl, RM_ALLOC, &a), 0);
	expect_is(a.status, 0);
	return a.object;
}

static uint32_t raw_import(int fd, uint32_t *object)
{
	struct rm_import_fd p = { .fd = fd, .type = RM_FD_OBJECT, .device = raw.device, .parent = raw.device };
	uint32_t status = raw_control(raw.client, RM_CTRL_IMPORT_FD, &p, sizeof(p));

	*object = p.object;
	return status;
}

/* A device of the GPU that the memory in fd is of, and an object of that memory. */
static uint32_t raw_start(int fd)
{
	struct rm_card_info cards[32] = { { .valid = 0 } };
	uint32_t object;

	memset(&raw, 0, sizeof(raw));
	raw.ctl = open(RM_CTL_DEVICE, O_RDWR | O_CLOEXEC);
	expect(raw.ctl >= 0);
	raw.client = raw_alloc(RM_CLASS_CLIENT, NULL, 0);
	expect_is(ioctl(raw.ctl, RM_CARD_INFO(32), cards), 0);
	for (int i = 0; i < 32; i++) {
		struct rm_id_info id = { .gpu_id = cards[i].gpu_id };
		struct rm_register_fd reg = { .ctl_fd = raw.ctl };
		struct rm_device_params p = { .client_share = raw.client, .va_mode = 2 };
		char path[32];

		snprintf(path, sizeof(path), RM_GPU_DEVICE "%u", cards[i].minor);
		raw.gpu = cards[i].valid ? open(path, O_RDWR | O_CLOEXEC) : -1;
		if (raw.gpu < 0 || ioctl(raw.gpu, RM_REGISTER_FD, &reg) ||
		    raw_control(raw.client, RM_CTRL_ID_INFO, &id, sizeof(id)))
			continue;
		p.instance = id.instance;
		raw.device = raw_alloc(RM_CLASS_DEVICE, &p, sizeof(p));
		if (!raw_import(fd, &object))
			return object;
	}
	expect(!"a GPU with that memory");
	return 0;
}

/* The words of a label, as rm/share.go has them. */
enum { FIRST, COUNT1 = 8, PAGES1, COUNT, PAGES, MAGIC, OFFSET, WORDS = 16 };

static void read_label(int fd, uint32_t *label)
{
	struct rm_export_info info = { .fd = fd };
	size_t mig = sizeof(info.mig);
	uint32_t status = raw_control(raw.client, RM_CTRL_EXPORT_INFO, &info, sizeof(info));

	/* 535 has no mig. */
	if (status) {
		expect_is(raw_control(raw.client, RM_CTRL_EXPORT_INFO, &info, sizeof(info) - mig), 0);
		memcpy(label, info.label - mig, sizeof(info.label));
	} else {
		memcpy(label, info.label, sizeof(info.label));
	}
}

static int raw_export(const uint32_t *objects, int n, int most, const uint32_t *label)
{
	struct rm_export_objects p = { .fd = open(RM_CTL_DEVICE, O_RDWR | O_CLOEXEC), .device = raw.device,
				       .most = most, .n = n };

	expect(p.fd >= 0);
	memcpy(p.label, label, sizeof(p.label));
	memcpy(p.objects, objects, n * sizeof(*objects));
	expect_is(raw_control(raw.client, RM_CTRL_EXPORT_OBJECTS, &p, sizeof(p)), 0);
	return p.fd;
}

static int raw_export_plainly(uint32_t object)
{
	struct rm_export_fd p = { .type = RM_FD_OBJECT, .device = raw.device, .parent = raw.device, .object = object };

	p.fd = open(RM_CTL_DEVICE, O_RDWR | O_CLOEXEC);
	expect(p.fd >= 0);
	expect_is(raw_control(raw.client, RM_CTRL_EXPORT_FD, &p, sizeof(p)), 0);
	return p.fd;
}

/* cuMemCreate, and CUDA's own descriptor of it; -1 where this driver makes none of that kind. */
static int cuda_exports(cu_mem *mem, size_t size, int place)
{
	struct cu_mem_want want = { CU_MEM_PINNED, CU_EXPORT_FD, { place, 0 } };
	int fd;

	if (cu.create(mem, size, &want, 0))
		return -1;
	expect_is(export_handle(&fd, *mem, CU_EXPORT_FD, 0), 0);
	return fd;
}

enum { HOST = 2, HOST_NUMA };	/* places of cuMemCreate */

static int host_memory(void)
{
	cu_mem mem;
	int fd = cuda_exports(&mem, OBJECT, HOST_NUMA);

	return fd >= 0 ? fd : cuda_exports(&mem, OBJECT, HOST);
}

static bool is_coherent(void)
{
	const char *machine = getenv("NVRM_SIM_MACHINE");
	int coherent = 0;

	if (on_doubles())
		return machine && strcmp(machine, "pcie");
	expect_is(cu.device_attribute(&coherent, CU_DEV_HOST_PAGE_TABLES, 0), 0);
	return coherent;
}

/* A process without CUDA, with a whole object of CUDA's. */
static void pin_whole(void *arg)
{
	const struct guest *x = arg;
	uint64_t offset, length;
	gdr_info_v2_t info;
	unsigned int count;
	gdr_mh_t mh;

	g = open_or_fail();
	expect_is(gdr_pin_fd(g, x->fd, 0, &mh), 0);
	expect_is(gdr_get_info_v2(g, mh, &info), 0);
	expect(!info.va && info.mapped_size == x->skip + x->size);
	expect_is(gdr_get_object(g, mh, &offset, &length, &count), 0);
	expect(!offset && length == info.mapped_size && count == 1);
	use(g, x->fd, x->skip, x->size, x->seed);
	expect_is(gdr_close(g), 0);
}

/*
 * cuMemExportToShareableHandle's descriptors, and such without a label. On GPUs with NVSwitch the larger memory has a second
 * object, the fabric's name of the memory, which no device can take. Its end is used.
 */
static void of_cuda(void)
{
	static const size_t sizes[] = { OBJECT, 600 * OBJECT };
	struct mapped m, again;
	gdr_mh_t mh;

	start();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		struct guest x = { cuda_exports(&m.mem, sizes[i], CU_PLACE_GPU), sizes[i] - OBJECT, OBJECT, 1 };
		cu_ptr p;
		int fd;

		expect(x.fd >= 0);
		map_whole(&m, sizes[i]);
		p = m.p + x.skip;
		fill_by_cuda(p, OBJECT, 1);
		expect(in_child("a guest with CUDA's descriptor", pin_whole, &x, 60));
		check_by_cuda(p, OBJECT, 2);
		x.fd = raw_export_plainly(raw_start(x.fd));
		x.seed = 2;
		expect(in_child("a guest with a descriptor that has no label", pin_whole, &x, 60));
		check_by_cuda(p, OBJECT, 3);
		expect_is(gdr_pin_fd(g, x.fd, 0, &mh), 0);
		expect_is(gdr_export_fd(g, mh, GDR_EXPORT_FLAG_WHOLE, &fd), 0);
		import_by_cuda(&again, fd, sizes[i]);
		check_by_cuda(again.p + x.skip, OBJECT, 3);
	}
}

/* A label of one object is CUDA's but for its end; one of two is refused by CUDA. */
static void labels_of_ours(void)
{
	uint32_t label[WORDS], start_of[COUNT] = { 4 };
	uint64_t offset, length;
	struct mapped x;
	unsigned int count;
	struct shared s;
	cu_ptr p;
	cu_mem mem;

	start();
	p = make_vmm(&cu, (size_t[]){ OBJECT, OBJECT }, 2);
	fill_by_cuda(p, OBJECT, 1);
	pin_and_export(&s, p + GPU_PAGE_SIZE, OBJECT - GPU_PAGE_SIZE);
	raw_start(s.fd);
	read_label(s.fd, label);
	expect(!memcmp(label, start_of, sizeof(start_of)));
	import_by_cuda(&x, s.fd, OBJECT);
	check_by_cuda(x.p, OBJECT, 1);
	pin_and_export(&s, p + GPU_PAGE_SIZE, OBJECT);
	read_label(s.fd, label);
	expect(label[COUNT1] == 1 && label[PAGES1] == GPU_PAGES(OBJECT) - 1);
	expect(label[COUNT] == 1 && label[PAGES] == 1);
	expect_is(gdr_get_object(g, s.mh, &offset, &length, &count), 0);
	expect(offset == GPU_PAGE_SIZE && length == OBJECT && count == 2);
	expect_is(import_handle(&mem, (void *)(intptr_t)s.fd, CU_EXPORT_FD), CU_NOT_SUPPORTED);
}

enum of { VIDEO, TWICE, TWO, HOSTS, NONE };

/*
 * What a row of hostile_labels exports, and how it differs from a good label. Labels that are
 * wrong whatever the file has are those of TestLabelOfAnother.
 */
struct row {
	const char *what;
	enum of of;
	int most, want;
	uint32_t change[4][2];	/* word, value */
};

static const struct row rows[] = {
	{ "a right one", VIDEO, 1, 0 },
	{ "CUDA's", VIDEO, 1, 0, { { MAGIC, 0 } } },
	{ "CUDA's, in a file with room", VIDEO, 100, 0, { { MAGIC, 0 } } },
	{ "CUDA's, of two objects: the first", TWO, 2, 0, { { MAGIC, 0 } } },
	{ "a pool's", VIDEO, 1, ENOTSUP, { { FIRST, 5 }, { MAGIC, 0 } } },
	{ "one page too long", VIDEO, 1, EINVAL, { { PAGES, GPU_PAGES(OBJECT) + 1 } } },
	{ "an offset with an end outside", VIDEO, 1, EINVAL, { { OFFSET, 1 } } },
	{ "an offset outside", VIDEO, 1, EINVAL, { { OFFSET, UINT32_MAX } } },
	{ "more objects than the file has room for", VIDEO, 1, EINVAL, { { FIRST, 77 }, { COUNT, 2 } } },
	{ "fewer objects than the file has", TWO, 2, EINVAL },
	{ "two runs of it", TWICE, 2, 0, { { FIRST, 77 }, { COUNT1, 1 }, { PAGES1, 1 } } },
	{ "the second too long", TWICE, 2, EINVAL, { { FIRST, 77 }, { COUNT1, 1 }, { PAGES1, 1 }, { PAGES, 33 } } },
	{ "no memory", NONE, 4, EINVAL },
	{ "host memory", HOSTS, 1, EINVAL },
	{ "host memory under CUDA's label", HOSTS, 1, EINVAL, { { MAGIC, 0 } } },
};

static struct {
	uint32_t objects[2], host;
	uint32_t label[WORDS];
	int fd;			/* of the library's */
} good;

static void prepare_labels(void)
{
	struct shared s;
	uint32_t other;
	cu_mem mem;
	cu_ptr p;
	int fd;

	start();
	p = make_vmm(&cu, (size_t[]){ OBJECT }, 1);
	pin_and_export(&s, p, OBJECT);
	good.fd = s.fd;
	good.objects[0] = raw_start(s.fd);
	read_label(s.fd, good.label);
	expect_is(good.label[PAGES], GPU_PAGES(OBJECT));
	fd = cuda_exports(&mem, OBJECT, CU_PLACE_GPU);
	expect_is(raw_import(fd, &good.objects[1]), 0);
	close(fd);
	fd = host_memory();
	if (fd >= 0 && !raw_import(fd, &other))
		good.host = other;
	close(fd);
	expect_is(gdr_unpin_buffer(g, s.mh), 0);
}

static int export_row(const struct row *r)
{
	uint32_t twice[2] = { good.objects[0], good.objects[0] }, label[WORDS];

	memcpy(label, good.label, sizeof(label));
	for (int i = 0; i < 4; i++)
		if (r->change[i][0] || r->change[i][1])
			label[r->change[i][0]] = r->change[i][1];
	/* The first word of several objects is what the magic is. */
	if (label[FIRST] == 77)
		label[FIRST] = label[MAGIC];
	switch (r->of) {
	case VIDEO:	return raw_export(good.objects, 1, r->most, label);
	case TWO:	return raw_export(good.objects, 2, r->most, label);
	case TWICE:	return raw_export(twice, 2, r->most, label);
	case HOSTS:	return raw_export(&good.host, 1, r->most, label);
	case NONE:	return raw_export(&(uint32_t){ 0 }, 1, r->most, label);
	}
	return -1;
}

/* What is pinned can be mapped, all of it. */
static void pin_and_map(int fd)
{
	gdr_info_v2_t info;
	uint32_t w;
	gdr_mh_t mh;
	void *va;

	expect_is(gdr_pin_fd(g, fd, 0, &mh), 0);
	expect_is(gdr_get_info_v2(g, mh, &info), 0);
	expect_is(gdr_map(g, mh, &va, info.mapped_size), 0);
	expect_is(gdr_copy_from_mapping(mh, &w, (char *)va + info.mapped_size - 4, 4), 0);
	expect_is(gdr_unpin_buffer(g, mh), 0);
}

/* In the order of rows, first with nothing imported before. After each one the good one pins and maps. */
static void hostile_labels(void)
{
	unsigned long live = 0;
	long fds = 0;
	int rc;

	prepare_labels();
	for (int turn = 0; turn < 2; turn++) {
		for (size_t n = sizeof(rows) / sizeof(*rows), i = n; i-- > 0; ) {
			const struct row *r = &rows[i];
			gdr_mh_t mh = { 77 };
			int fd, want = r->of == HOSTS && is_coherent() ? 0 : r->want;

			if (r->of == HOSTS && !good.host) {
				note("no %s here", r->what);
				continue;
			}
			fd = export_row(r);
			rc = gdr_pin_fd(g, fd, 0, &mh);
			if (rc != want)
				note("%s: %d, want %d", r->what, rc, want);
			expect_is(rc, want);
			if (rc) {
				expect_is(mh.h, 77);
			} else {
				expect_is(gdr_unpin_buffer(g, mh), 0);
				pin_and_map(fd);
			}
			close(fd);
			pin_and_map(good.fd);
			if (turn) {
				expect_is(count_live(), live);
				expect_is(count_fds(), fds);
			}
		}
		live = count_live();
		fds = count_fds();
	}
}

const struct guest_case cases[] = {
	{ "what CUDA exports", of_cuda, 60, 120 },
	{ "labels of the library", labels_of_ours, 10 },
	{ "labels of anybody", hostile_labels, 30 },
	{ NULL },
};
