// Command suite tests packages on one Postgres server that it starts. At the end it prints the tests
// that took longest, and the CPU time of the tests, of the processes that they started and of
// Postgres, without the compiling.
//
//	go run ./scripts/suite -short ./...                      the quick tests
//	go run ./scripts/suite -short -times 10 -busy 2 ./...    ten times, beside two busy processes
//	go run ./scripts/suite -short -affected                  those of the packages that a change affects
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weir-social/weir/internal/testing/devpg"
)

// options are the flags.
type options struct {
	build   []string // arguments of go test -c
	test    []string // arguments of the compiled tests
	times   int
	busy    int
	atOnce  int
	outputs string
	server  map[string]string // settings of Postgres
}

func main() {
	short := flag.Bool("short", false, "run only the quick tests")
	race := flag.Bool("race", false, "build with the race detector")
	tags := flag.String("tags", "", "build tags")
	run := flag.String("run", "", "run only the tests that match this pattern")
	skip := flag.String("skip", "", "leave out the tests that match this pattern")
	bench := flag.String("bench", "", "also run the benchmarks that match this pattern, once each")
	timeout := flag.Duration("timeout", 0, "the longest time for the tests of one package; by default 1 h, and 20 min with -short")
	var o options
	flag.IntVar(&o.times, "times", 1, "run everything this often, and print how often each test failed")
	flag.IntVar(&o.busy, "busy", 0, "run beside this many busy processes")
	flag.IntVar(&o.atOnce, "p", runtime.GOMAXPROCS(0), "test this many packages at once")
	flag.StringVar(&o.outputs, "outputs", "", "write the output of each failed test to a file in this folder")
	changes := flag.Bool("affected", false, "test the packages that the changes since -base affect")
	base := flag.String("base", "", "the commit before the changes; by default where the branch left its upstream, or HEAD~")
	flag.Parse()
	o.server = map[string]string{"max_connections": "600"}
	longest := time.Hour
	if *short {
		longest = 20 * time.Minute
		o.server["plan_cache_mode"] = "force_generic_plan" // planning the statements of the quick tests takes longer than running them
	}
	o.build = []string{"-vet=off", "-ldflags=-s -w", "-tags=" + *tags, fmt.Sprintf("-race=%t", *race)}
	o.test = []string{"-test.v=test2json", "-test.paniconexit0", fmt.Sprintf("-test.short=%t", *short), "-test.run=" + *run,
		"-test.skip=" + *skip, "-test.bench=" + *bench, "-test.benchtime=1x", "-test.timeout=" + cmp.Or(*timeout, longest).String()}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	packages, err := flag.Args(), error(nil)
	if *changes {
		if packages, err = affected(ctx, ".", *base); err == nil {
			fmt.Printf("%d packages are affected: %s\n", len(packages), strings.Join(packages, " "))
		}
	}
	good := true
	if err == nil && (len(packages) > 0 || !*changes) {
		good, err = suite(ctx, o, packages)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
	}
	if err != nil || !good {
		os.Exit(1)
	}
}

// suite reports whether all tests passed.
func suite(ctx context.Context, o options, patterns []string) (good bool, err error) {
	folder, err := os.MkdirTemp("", "weir-suite-")
	if err != nil {
		return false, fmt.Errorf("make a folder for the compiled tests: %w", err)
	}
	defer os.RemoveAll(folder) // a temporary folder
	packages, err := compile(ctx, o, folder, patterns)
	if err != nil {
		return false, err
	}
	for range o.busy {
		spin := exec.Command("sh", "-c", `while kill -0 $PPID; do :; done`)
		if err := spin.Start(); err != nil {
			return false, fmt.Errorf("keep a processor busy: %w", err)
		}
		defer spin.Process.Kill() // it ends with this process anyway
	}
	r := newResults(o.outputs)
	for n := range o.times {
		if o.times > 1 {
			fmt.Printf("run %d of %d\n", n+1, o.times)
		}
		if err := r.round(ctx, o, packages); err != nil {
			return false, err
		}
	}
	return r.print(), nil
}

// compiled is the tests of one package.
type compiled struct {
	name   string // the import path
	folder string
	binary string
}

// compile builds the tests of the packages, and returns them in the order of the patterns.
func compile(ctx context.Context, o options, folder string, patterns []string) ([]compiled, error) {
	list := append([]string{"list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}"}, patterns...)
	out, err := exec.CommandContext(ctx, "go", list...).Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages %s: %w", strings.Join(patterns, " "), err)
	}
	// go test -c names a binary after the last element of its package, so packages that share it go
	// into different folders.
	var packages []compiled
	var turns [][]string
	seen := map[string]int{}
	for line := range strings.Lines(string(out)) {
		name, dir, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		turn := seen[path.Base(name)]
		seen[path.Base(name)]++
		if turn == len(turns) {
			turns = append(turns, nil)
		}
		turns[turn] = append(turns[turn], name)
		packages = append(packages, compiled{name: name, folder: dir, binary: filepath.Join(folder, fmt.Sprint(turn), path.Base(name)+".test")})
	}
	for turn, names := range turns {
		args := append([]string{"test", "-c", "-o", filepath.Join(folder, fmt.Sprint(turn)) + "/"}, o.build...)
		build := exec.CommandContext(ctx, "go", append(args, names...)...)
		build.Stdout, build.Stderr = os.Stdout, os.Stderr
		if err := build.Run(); err != nil {
			return nil, fmt.Errorf("compile the tests: %w", err)
		}
	}
	return packages, nil
}

// round tests every package once, on a new Postgres server.
func (r *results) round(ctx context.Context, o options, packages []compiled) error {
	before, began := children(), time.Now()
	server, err := devpg.Start(ctx, devpg.Options{Settings: o.server})
	if err != nil {
		return err
	}
	env := append(os.Environ(), "WEIR_TEST_DATABASE_URL="+server.URL("postgres"))
	queue := make(chan compiled, len(packages))
	for _, p := range packages {
		queue <- p
	}
	close(queue)
	var group sync.WaitGroup
	for range o.atOnce {
		group.Go(func() {
			for p := range queue {
				r.test(ctx, o, p, env)
			}
		})
	}
	group.Wait()
	if err := server.Stop(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	r.printRound(time.Since(began), children()-before)
	return ctx.Err()
}

// children returns the CPU time, of user and system, that ended children of this process used, and theirs.
func children() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_CHILDREN, &usage) != nil {
		return 0 // it cannot fail with these arguments
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
