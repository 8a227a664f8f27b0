package nvrm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Config is what the variables of README.md say. Of a zero Config there are no GPUs.
type Config struct {
	Machines    []Machine // of the GPUs, in the order of their PCI addresses
	Version     int       // the driver's version: 535, 550, ...
	VersionText string    // the whole of it
	BAR         uint64    // bytes for each GPU
	Page        uint64    // the kernel's, in bytes
	Answer      uint32    // of RM_MAP_MEMORY, 0: that of the machine
	PhysAttr    uint32    // how system memory is cached
	Chipset     uint32    // flags of GET_CHIPSET_INFO
	Scattered   bool      // see passesEnd
	Pass        []uint32  // what a sandbox lets pass: requests, classes and controls; nil: all
}

const (
	gpusMax          = 8
	chipsetUnaligned = 1 << 1 // of BAR1; from 590 on
)

// environment reads numbers, until one is none.
type environment struct {
	get func(name string) (string, bool)
	err error
}

func (e *environment) number(name string, otherwise, least, most uint64) uint64 {
	s, ok := e.get(name)
	if !ok {
		return otherwise
	}
	v, err := strconv.ParseUint(s, 0, 64)
	if err != nil || v < least || v > most {
		e.err = fmt.Errorf("%s=%s: give a number from %d to %d", name, s, least, most)
	}
	return v
}

// FromEnv reads the variables, and the rules of NVRM_SIM_FAIL.
func FromEnv(get func(name string) (string, bool)) (*Driver, error) {
	e := &environment{get: get}
	devices := e.number("NVRM_SIM_DEVICES", 4, 1, gpusMax)
	c := Config{
		Version:   int(e.number("NVRM_SIM_DRIVER", 580, 535, 999)),
		Page:      e.number("NVRM_SIM_PAGE", 4096, 4096, 64<<10),
		Answer:    uint32(e.number("NVRM_SIM_ANSWER", 0, 0, mapAnswerMask)),
		PhysAttr:  uint32(e.number("NVRM_SIM_PHYS_ATTR", 2, 0, 7)),
		Scattered: e.number("NVRM_SIM_SCATTERED", 0, 0, 1) == 1,
		BAR:       e.number("NVRM_SIM_BAR1_MIB", 256<<10, 0, 1<<20) << 20,
	}
	c.VersionText = fmt.Sprintf("%d.159.04", c.Version)
	if c.Version >= 590 {
		c.Chipset = chipsetUnaligned
	}
	if e.err != nil {
		return nil, e.err
	}
	var err error
	if c.Machines, err = machinesOf(get, int(devices), c.Version); err != nil {
		return nil, err
	}
	d := New(c)
	if d.Pass, err = numbers(get, "NVRM_SIM_PASS"); err != nil {
		return nil, err
	}
	rules, _ := get("NVRM_SIM_FAIL")
	return d, d.parseRules(rules)
}

// numbers reads a comma list.
func numbers(get func(string) (string, bool), name string) (list []uint32, err error) {
	text, _ := get(name)
	for _, one := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' }) {
		v, err := strconv.ParseUint(one, 0, 32)
		if err != nil {
			return nil, fmt.Errorf("%s=%s: give a comma list of numbers", name, text)
		}
		list = append(list, uint32(v))
	}
	return list, nil
}

func machinesOf(get func(string) (string, bool), n, version int) (list []Machine, err error) {
	text, ok := get("NVRM_SIM_MACHINE")
	if !ok {
		text = "pcie"
	}
	kinds := strings.Split(text, ",")
	for i := range n {
		m := Machine(kinds[min(i, len(kinds)-1)])
		if !slices.Contains(machines, m) {
			return nil, fmt.Errorf("NVRM_SIM_MACHINE=%s: give one of %v, or a comma list of them", text, machines)
		}
		if m == "cdmm" && version < 580 {
			return nil, fmt.Errorf("NVRM_SIM_MACHINE=cdmm: NVRM_SIM_DRIVER must be 580 or more")
		}
		list = append(list, m)
	}
	return list, nil
}

// rule has the nth call of a name fail, or each if nth is 0.
type rule struct {
	name       string
	result     int32
	nth, calls uint64
}

// parseRules reads name=result[@n],...
func (d *Driver) parseRules(text string) error {
	for _, one := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' }) {
		name, value, _ := strings.Cut(one, "=")
		value, times, counted := strings.Cut(value, "@")
		result, err := strconv.ParseInt(value, 0, 32)
		nth, err2 := uint64(0), error(nil)
		if counted {
			nth, err2 = strconv.ParseUint(times, 10, 32)
		}
		if err != nil || err2 != nil || result == 0 || counted && nth == 0 || !d.Fail(name, int32(result), nth) {
			return fmt.Errorf("NVRM_SIM_FAIL: cannot use rule %q: write name=result or name=result@n, with a name of README.md", one)
		}
	}
	return nil
}

// Fail makes a rule of NVRM_SIM_FAIL. result 0 drops the rules of the name. It returns false if
// nothing has the name.
func (d *Driver) Fail(name string, result int32, nth uint64) bool {
	// LOST is the GPU, MMAP_STATUS what mmap answers, EXPORTER another one of dma-bufs.
	known := slices.ContainsFunc(requests, func(k kind) bool { return k.name == name })
	for _, k := range uvmRequests {
		known = known || k.name == name
	}
	if !known && !slices.Contains([]string{"OPEN", "LOST", "MMAP_STATUS", "EXPORTER"}, name) {
		return false
	}
	if result == 0 {
		d.faults = slices.DeleteFunc(d.faults, func(r *rule) bool { return r.name == name })
	} else {
		d.faults = append(d.faults, &rule{name: name, result: result, nth: nth})
	}
	return true
}

// Fault is the injected failure of a call of a program's, a status or an errno; 0: none. Calls
// on the simulated libcuda's files of RM, if they are known, are neither failed nor counted. f may
// be nil.
func (d *Driver) Fault(f *File, name string) int32 {
	if d.isCUDAs(f) {
		return 0
	}
	var result int32
	for _, r := range d.faults {
		if r.name != name {
			continue
		}
		r.calls++
		if result == 0 && (r.nth == 0 || r.calls == r.nth) {
			result = r.result
		}
	}
	return result
}

// isCUDAs says whether a file is known to be the simulated libcuda's. f may be nil.
func (d *Driver) isCUDAs(f *File) bool {
	if f == nil {
		return false
	}
	mapper := d.Client(f.mapper)
	return f.CUDA || mapper != nil && mapper.File.CUDA
}
