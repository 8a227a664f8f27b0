// SPDX-License-Identifier: MIT
/*
 * Self-tests of the simulated driver, run by rm_sim: every request, each refusal, how
 * long things live. TAP output.
 *
 * Without an argument no NVRM_SIM_* variable may be set. "options" needs the variables
 * that the function of that name lists.
 */
#include "rm_selftest.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_files(void)
{
	struct statx sx;
	struct stat st;
	int a, b;

	IS(access(RM_CTL_DEVICE, R_OK | W_OK), 0);
	IS(access("/dev/nvidia2", F_OK), 0);
	IS(access("/dev/nvidia7", F_OK), -1);
	IS(errno, ENOENT);
	IS(stat(RM_CTL_DEVICE, &st), 0);
	TRUE(S_ISCHR(st.st_mode) && st.st_rdev == makedev(RM_MAJOR, RM_CTL_MINOR));
	IS(stat("/dev/nvidia9", &st), -1);
	IS(statx(AT_FDCWD, "/dev/nvidia0", 0, STATX_BASIC_STATS, &sx), 0);
	TRUE(sx.stx_rdev_major == RM_MAJOR && sx.stx_rdev_minor == 0);
	IS(gpu_open(7), -1);
	IS(errno, ENOENT);
	a = ctl_open();
	b = open(RM_CTL_DEVICE, O_RDWR);
	TRUE(a >= 0 && b >= 0);
	IS(fcntl(a, F_GETFD), FD_CLOEXEC);
	IS(fcntl(b, F_GETFD), 0);
	/* A mapping without a request. */
	TRUE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, b, 0) == MAP_FAILED);
	close(a);
	close(b);
	a = gpu_open(0);
	TRUE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, a, 0) == MAP_FAILED);
	IS(errno, EINVAL);
	close(a);
}

/* Other files and their mappings are as without the driver. */
static void test_others(void)
{
	int fd = memfd_create("other", MFD_CLOEXEC), null = open("/dev/null", O_RDWR | O_CLOEXEC);
	char *p;

	TRUE(null >= 0);
	IS(ioctl(null, RM_ALLOC, &fd), -1);
	IS(errno, ENOTTY);
	IS(ftruncate(fd, (off_t)(2 * PAGE)), 0);
	IS(pwrite(fd, "x", 1, (off_t)PAGE), 1);
	p = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, (off_t)PAGE);
	TRUE(p != MAP_FAILED && *p == 'x');
	IS(munmap(p, PAGE), 0);
	IS(access("/dev/null", R_OK), 0);
	close(fd);
	close(null);
}

static void test_cards(void)
{
	struct rm_card_info c[32];
	int ctl = ctl_open(), n = cards(ctl, c, 32), i;
	struct rm_version v = { .cmd = '2' };

	IS(ioctl(ctl, RM_VERSION, &v), 0);
	TRUE(strncmp(v.version, "580.", 4) == 0);
	IS(ioctl_errno(ctl, RM_CARD_INFO(3), c), EINVAL);
	IS(n, 4);
	for (i = 0; i < n; i++)
		TRUE(c[i].pci_vendor == 0x10de && c[i].minor != (uint32_t)i && c[i].gpu_id != c[i].minor);
	/* Two GPUs differ in the domain alone, two in the slot alone. */
	TRUE(c[3].pci_bus == c[2].pci_bus && c[3].pci_domain != c[2].pci_domain);
	TRUE(c[1].pci_bus == c[0].pci_bus && c[1].pci_slot != c[0].pci_slot);
	close(ctl);
}

/* A GPU's file, its memory and its device are not another GPU's. */
static void test_two_gpus(void)
{
	struct rm_export_fd ex = { .type = RM_FD_OBJECT };
	struct rm_import_fd im = { .type = RM_FD_OBJECT };
	uint32_t mem, elsewhere, copy;
	struct rm r, other;
	uint64_t lin, lin2;
	uint8_t *p, *q;

	rm_open(&r, 0);
	rm_open(&other, 1);
	IS(rm_new_memory(&r, 16 * PAGE, &mem), 0);
	IS(rm_new_memory(&other, 16 * PAGE, &elsewhere), 0);
	IS(rm_map_on(&r, mem, 0, PAGE, other.gpu_fd, &lin), RM_INVALID_ARGUMENT);
	IS(rm_dup(&other, r.client, mem, &copy), RM_INVALID_PARENT);
	p = rm_map(&r, mem, 0, PAGE, &lin);
	q = rm_map(&other, elsewhere, 0, PAGE, &lin2);
	TRUE(p && q);
	p[5] = 7;
	IS(q[5], 0);
	IS(rm_stats(&r).bar_used, PAGE);
	munmap(p, PAGE);
	munmap(q, PAGE);
	IS(rm_unmap(&r, mem, lin), 0);
	IS(rm_unmap(&other, elsewhere, lin2), 0);
	ex.device = ex.parent = r.device;
	ex.object = mem;
	ex.fd = im.fd = ctl_open();
	im.device = im.parent = other.device;
	IS(rm_control(&r, RM_CTRL_EXPORT_FD, &ex, sizeof(ex)), 0);
	IS(rm_control(&other, RM_CTRL_IMPORT_FD, &im, sizeof(im)), RM_INVALID_PARENT);
	close(ex.fd);
	rm_close(&other);
	rm_close(&r);
}

/* A GPU that nobody has opened, and one without a registered file. */
static void test_unopened(void)
{
	struct rm_register_fd reg;
	struct rm_card_info c[32];
	struct rm_id_info id = { .gpu_id = 0 };
	uint32_t device;
	struct rm r;
	int fd;

	rm_open(&r, 0);
	cards(r.ctl, c, 32);
	id.gpu_id = c[1].gpu_id;
	IS(rm_control(&r, RM_CTRL_ID_INFO, &id, sizeof(id)), RM_INVALID_ARGUMENT);
	fd = gpu_open(c[1].minor);
	IS(rm_control(&r, RM_CTRL_ID_INFO, &id, sizeof(id)), 0);
	TRUE(id.instance != r.instance);
	IS(id.flags, 0);
	IS(id.numa, -1);
	IS(rm_new_device(&r, id.instance, &device), RM_INVALID_DEVICE);
	reg.ctl_fd = fd;
	IS(ioctl_errno(fd, RM_REGISTER_FD, &reg), EINVAL);
	reg.ctl_fd = r.ctl;
	IS(ioctl(fd, RM_REGISTER_FD, &reg), 0);
	IS(ioctl_errno(fd, RM_REGISTER_FD, &reg), EINVAL);
	IS(rm_new_device(&r, id.instance, &device), 0);
	close(fd);
	rm_close(&r);
}

static int child_launch(void *arg)
{
	const char **env = arg;
	char sim[4096];
	ssize_t n = readlink("/proc/self/exe", sim, sizeof(sim) - 32);

	if (n < 0)
		return 1;
	sim[n] = '\0';
	strcpy(strrchr(sim, '/'), "/../doubles/rm_sim");
	fclose(stderr);
	setenv(env[0], env[1], 1);
	execl(sim, sim, "true", NULL);
	return 2;
}

/* A bad value ends the process. */
static void test_values(void)
{
	IS(in_child(child_launch, (const char *[]){ "NVRM_SIM_DEVICES", "9" }), 125);
	IS(in_child(child_launch, (const char *[]){ "NVRM_SIM_MACHINE", "grace,wc" }), 125);
	IS(in_child(child_launch, (const char *[]){ "NVRM_SIM_FAIL", "MAP=1" }), 125);
	IS(in_child(child_launch, (const char *[]){ "NVRM_SIM_FAIL", "MAP_MEMORY" }), 125);
}

/*
 * Needs these variables:
 *
 * NVRM_SIM_DEVICES=1 NVRM_SIM_DRIVER=535 NVRM_SIM_BAR1_MIB=1
 * NVRM_SIM_FAIL=DUP_OBJECT=0x51@2,UNMAP_MEMORY=0x1f@1,OPEN=13@5
 */
static void options(void)
{
	uint32_t mem, copy;
	uint64_t lin, lin2;
	struct rm_card_info c[1];
	uint8_t *p;
	struct rm r;
	int fd;

	rm_open(&r, 0);
	IS(cards(r.ctl, c, 1), 1);
	IS(rm_new_memory(&r, 2 * MIB, &mem), 0);
	fd = gpu_open(r.minor);
	IS(rm_map_on(&r, mem, 0, 2 * MIB, fd, &lin), RM_NO_RESOURCES);
	IS(rm_map_on(&r, mem, MIB, MIB, fd, &lin), ANSWER(RM_MAP_BAR1));
	p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	TRUE(p != MAP_FAILED);
	close(fd);
	fd = gpu_open(r.minor);
	IS(rm_map_on(&r, mem, 0, PAGE, fd, &lin2), RM_NO_RESOURCES);
	IS(rm_unmap(&r, mem, lin), RM_INVALID_ARGUMENT);
	IS(rm_unmap(&r, mem, lin), 0);
	IS(rm_map_on(&r, mem, 0, PAGE, fd, &lin2), ANSWER(RM_MAP_BAR1));
	close(fd);
	munmap(p, MIB);
	IS(rm_dup(&r, r.client, mem, &copy), 0);
	IS(rm_dup(&r, r.client, mem, &copy), RM_NO_MEMORY);
	IS(rm_dup(&r, r.client, mem, &copy), 0);
	IS(ctl_open(), -1);
	IS(errno, EACCES);
	IS(ioctl_errno(r.gpu_fd, RM_EXPORT_DMABUF, c), EINVAL);
	rm_close(&r);
}

/* A kernel with pages of 64 KiB. Needs NVRM_SIM_PAGE=65536 */
static void large_pages(void)
{
	const uint64_t page = 65536;
	uint64_t lin;
	uint32_t mem;
	struct rm r;
	int fd;

	rm_open(&r, 0);
	IS(rm_new_memory(&r, page + PAGE, &mem), RM_INVALID_ARGUMENT);
	IS(rm_new_memory(&r, 2 * page, &mem), 0);
	fd = gpu_open(r.minor);
	IS(rm_map_on(&r, mem, 0, PAGE, fd, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, mem, PAGE, page, fd, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, mem, page, page, fd, &lin), ANSWER(RM_MAP_BAR1));
	close(fd);
	rm_close(&r);
}

static struct rm_id_info id_info_of(const struct rm *r, uint32_t gpu_id)
{
	struct rm_id_info id = { .gpu_id = gpu_id };

	IS(rm_control(r, RM_CTRL_ID_INFO, &id, sizeof(id)), 0);
	return id;
}

static uint32_t space_of(const struct rm *r, uint32_t object)
{
	struct rm_space p = { .object = object };

	IS(rm_control(r, RM_CTRL_SPACE, &p, sizeof(p)), 0);
	return p.space;
}

static uint32_t gpu_at(struct rm_card_info *c, int n, uint32_t minor)
{
	int i;

	for (i = 0; i < n; i++)
		if (c[i].valid && c[i].minor == minor)
			return c[i].gpu_id;
	return 0;
}

/* GPU memory that is the CPU's, too, in two pages that are no neighbours. */
static void test_coherent(int card, bool numa)
{
	struct rm_card_info c[32] = { { .valid = 0 } };
	uint64_t lin, size = 0;
	struct rm_id_info id;
	uint32_t mem;
	struct rm r;
	int fd;

	rm_open(&r, card);
	cards(r.ctl, c, 32);
	id = id_info_of(&r, gpu_at(c, 32, r.minor));
	IS(id.flags, RM_ID_ATS);
	TRUE((id.numa >= 0) == numa);
	IS(rm_new_memory(&r, 4 * MIB, &mem), 0);
	IS(space_of(&r, mem), RM_SPACE_VIDEO);
	IS(rm_control_on(&r, mem, RM_CTRL_PAGE_SIZE, &size, sizeof(size)), 0);
	IS(size, 2 * MIB);
	IS(rm_control_on(&r, r.device, RM_CTRL_PAGE_SIZE, &size, sizeof(size)), RM_INVALID_OBJECT);
	fd = gpu_open(r.minor);
	IS(rm_map_on(&r, mem, 0, 4 * MIB, fd, &lin), RM_NOT_FOUND);
	IS(rm_map_on(&r, mem, PAGE, 2 * MIB, fd, &lin), RM_NOT_FOUND);
	IS(rm_map_on(&r, mem, 2 * MIB, 2 * MIB, fd, &lin), ANSWER(RM_MAP_COHERENT));
	close(fd);
	IS(rm_stats(&r).bar_used, 0);
	rm_close(&r);
}

/* GPU memory that is the system's. */
static void test_system(int card)
{
	struct rm_surface_item item = { .index = RM_SURFACE_PHYS_ATTR };
	struct rm_surface list = { .n = 1, .list = (uintptr_t)&item };
	struct rm_card_info c[32] = { { .valid = 0 } };
	uint64_t lin;
	uint32_t mem;
	struct rm r;
	void *p;
	int fd;

	rm_open(&r, card);
	cards(r.ctl, c, 32);
	IS(id_info_of(&r, gpu_at(c, 32, r.minor)).flags, RM_ID_SOC | RM_ID_SOC_IGPU);
	IS(rm_new_memory(&r, 4 * PAGE, &mem), 0);
	IS(space_of(&r, mem), RM_SPACE_SYSTEM);
	IS(rm_control_on(&r, mem, RM_CTRL_SURFACE, &list, sizeof(list)), 0);
	IS(item.data >> 29, 2);
	fd = gpu_open(r.minor);
	IS(rm_map_on(&r, mem, 0, PAGE, fd, &lin), RM_INVALID_ARGUMENT);
	close(fd);
	fd = ctl_open();
	IS(rm_map_on(&r, mem, 2 * PAGE, PAGE, fd, &lin), ANSWER(RM_MAP_SYSTEM));
	TRUE(mmap(NULL, 3 * PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	IS(errno, ERANGE);
	p = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
	TRUE(p != MAP_FAILED);
	munmap(p, 2 * PAGE);
	close(fd);
	rm_close(&r);
}

static void test_mig(int card)
{
	struct rm_devices *d = calloc(1, sizeof(*d));
	struct rm_card_info c[32] = { { .valid = 0 } };
	uint32_t mem, copy, i, n = 0;
	struct rm r;

	rm_open(&r, card);
	cards(r.ctl, c, 32);
	IS(rm_control(&r, RM_CTRL_DEVICES, d, sizeof(*d)), 0);
	IS(d->n, 4);
	for (i = 0; i < d->n; i++)
		n += d->list[i].gpu_id == gpu_at(c, 32, r.minor) && d->list[i].gpu_instance != RM_NO_INSTANCE;
	IS(n, 1);
	IS(rm_new_memory(&r, PAGE, &mem), 0);
	IS(rm_dup(&r, r.client, mem, &copy), RM_NOT_FOUND);
	free(d);
	rm_close(&r);
}

/* Needs NVRM_SIM_MACHINE=grace,cdmm,gb10,mig NVRM_SIM_SCATTERED=1 NVRM_SIM_BAR1_DEVICE=1 */
static void machines(void)
{
	struct rm_confidential cc;
	struct rm_chipset chip;
	struct rm_alloc a = { .class = RM_CLASS_CONFIDENTIAL };
	struct rm r;

	/* RM_CARD_INFO has the GPUs in the reverse order. */
	test_coherent(3, true);
	test_coherent(2, false);
	test_system(1);
	test_mig(0);
	rm_open(&r, 0);
	IS(rm_control(&r, RM_CTRL_CHIPSET, &chip, sizeof(chip)), 0);
	IS(chip.flags, 0);
	a.root = a.parent = r.client;
	IS(rm_call(r.ctl, RM_ALLOC, &a, &a.status), 0);
	IS(rm_control_on(&r, a.object, RM_CTRL_CONFIDENTIAL, &cc, sizeof(cc) - 1), RM_INVALID_ARGUMENT);
	IS(rm_control_on(&r, a.object, RM_CTRL_CONFIDENTIAL, &cc, sizeof(cc)), 0);
	IS(cc.feature + cc.multi_gpu, 0);
	IS(rm_free(&r, a.object), 0);
	rm_close(&r);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1 && strcmp(argv[1], "pages") == 0) {
		large_pages();
		return tap_end();
	}
	if (argc > 1 && strcmp(argv[1], "machines") == 0) {
		machines();
		return tap_end();
	}
	if (argc > 1 && strcmp(argv[1], "options") == 0) {
		options();
		test_rm_cuda_old();
		return tap_end();
	}
	test_files();
	test_others();
	test_cards();
	test_unopened();
	test_rm_both();
	test_two_gpus();
	test_values();
	test_rm_cuda();
	return tap_end();
}
