// SPDX-License-Identifier: MIT

package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// A figure is one row of what a benchmark found.
type figure struct {
	Op      string  // what is done: write, read, pin
	Who     string  // by whom: gdrcopy, cuMemcpy, a plain loop
	Mode    string  // how: alone, back-to-back
	Size    float64 // bytes
	Threads float64
	Samples float64
	P0      float64 `json:"p0_ns"`
	P50     float64 `json:"p50_ns"`
	GBps    float64 `json:"gb_per_s"` // 1e9 bytes a second; 0 where no bytes move
}

// A result is what one run of a benchmark printed by --json. The facts are the texts
// beside the figures: the date, the machine, the driver.
type result struct {
	facts   map[string]string
	figures []figure
}

func (r *result) UnmarshalJSON(data []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return err
	}
	if _, ok := members["results"]; !ok {
		return fmt.Errorf("it has no results")
	}
	r.facts = make(map[string]string)
	for key, value := range members {
		var err error
		if key == "results" {
			err = json.Unmarshal(value, &r.figures)
		} else {
			var text string
			err = json.Unmarshal(value, &text)
			r.facts[key] = text
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

// load reads a file that a benchmark wrote. Without the file the result is nil.
func load(path string) (*result, error) {
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := new(result)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s is not what a benchmark wrote: %w", path, err)
	}
	return r, nil
}

// find returns the figure of these, or an empty one. An empty mode stands for any.
func (r *result) find(op, who, mode string, size float64) figure {
	for _, f := range r.figures {
		if f.Op == op && f.Who == who && f.Size == size && (mode == "" || f.Mode == mode) {
			return f
		}
	}
	return figure{}
}

// sizes are those of the library's copies, in the order in which they were made.
func (r *result) sizes() []float64 {
	var sizes []float64
	for _, f := range r.figures {
		if f.Op == "write" && f.Who == "gdrcopy" && f.Mode == "back-to-back" {
			sizes = append(sizes, f.Size)
		}
	}
	return sizes
}
