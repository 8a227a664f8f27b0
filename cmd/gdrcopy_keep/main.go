// Command gdrcopy_keep keeps descriptors of GPU memory, which outlives the process that filled it. See gdrcopy_keep(1).
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"gdrapi/cmd/internal/version"
)

const help = `Usage: gdrcopy_keep serve [-g GROUP] [SOCKET]
       gdrcopy_keep list SOCKET
       gdrcopy_keep check SOCKET
       gdrcopy_keep drop SOCKET NAME[@VERSION]
Keeps descriptors of GPU memory, which outlives the process that filled it.

  serve  keep what processes of this user put; without SOCKET on systemd's socket
  list   print each set, and who has it, as a line of JSON
  check  ask whether the keeper answers
  drop   give up a set, or all versions of it; processes that have it keep it

  -g, --group GROUP  serve all who may connect, as this group then may
  -V, --version      print the release, the commit and the version of Go
  -h, --help         print this

Exit status:
  0  done
  1  refused, or failed
  2  an argument is wrong
  3  no keeper answers
  4  nothing of that name and version is kept
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the program, with what it writes to as parameters.
func run(args []string, out, errs io.Writer) int {
	var group string
	var ofBuild bool
	set := flag.NewFlagSet("gdrcopy_keep", flag.ContinueOnError) // which knows -h and --help
	set.SetOutput(io.Discard)
	set.StringVar(&group, "g", "", "")
	set.StringVar(&group, "group", "", "")
	set.BoolVar(&ofBuild, "V", false, "")
	set.BoolVar(&ofBuild, "version", false, "")
	command := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	err := set.Parse(args)
	takes, known := map[string]int{"serve": 1, "list": 1, "check": 1, "drop": 2}[command]
	text := ""
	switch {
	case err == flag.ErrHelp:
		text, err = help, nil
	case err == nil && ofBuild:
		text = fmt.Sprintf("gdrcopy_keep %s (commit %s, %s)\n", version.Release, version.Commit, runtime.Version())
	case err != nil || !known || set.NArg() > takes || set.NArg() < takes && command != "serve" || group != "" && command != "serve":
		fmt.Fprint(errs, help)
		return 2
	case command == "serve":
		err = serve(set.Arg(0), group)
	default:
		text, err = ask(command, set.Arg(0), set.Arg(1))
	}
	if err == nil {
		_, err = io.WriteString(out, text)
	}
	if err == nil {
		return 0
	}
	fmt.Fprintf(errs, "gdrcopy_keep: %v\n", err)
	var no *refusal
	if errors.As(err, &no) {
		return cmp.Or(map[string]int{"ENOTCONN": 3, "ENOENT": 4}[no.Errno], 1)
	}
	return 1
}

// ask asks the keeper, and returns what to print of its answer.
func ask(command, path, which string) (string, error) {
	op, limit := "list", 5*time.Second
	if command == "drop" { // systemd closes one descriptor after the other
		op, limit = "drop", 10*time.Minute
	}
	end, err := net.DialTimeout("unix", path, limit)
	if err != nil {
		return "", refuse("ENOTCONN", "%v", err)
	}
	defer end.Close()
	name, version, one := strings.Cut(which, "@")
	request := answer{"op": op, "name": name, "version": version, "all": !one}
	var reply struct {
		refusal
		Sets, Dropped []json.RawMessage
	}
	c := conn{end.(*net.UnixConn), limit}
	c.send(request) // if that fails, so does what follows
	if _, err := c.receive(&reply, 0); err != nil {
		return "", refuse("ENOTCONN", "%s does not answer: %v", path, err)
	}
	if reply.Errno != "" {
		return "", &reply.refusal
	}
	text := ""
	if command == "check" {
		return text, nil
	}
	for _, set := range append(reply.Sets, reply.Dropped...) {
		text += string(set) + "\n"
	}
	return text, nil
}
