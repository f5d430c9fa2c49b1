package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// results are those of all rounds. mu guards the fields below it: packages are tested beside each other.
type results struct {
	outputs string // the folder for the output of failed tests, or ""

	mu      sync.Mutex
	rounds  int
	counts  map[string]int // tests that pass, fail or skip, by these words
	failed  map[string]int // failures, by package and test
	longest []outcome      // tests of the current round
}

// outcome is how long a test took.
type outcome struct {
	test string // package and name
	took time.Duration
}

func newResults(outputs string) *results {
	return &results{outputs: outputs, counts: map[string]int{}, failed: map[string]int{}}
}

// event is a line of test2json.
type event struct {
	Action  string
	Test    string
	Elapsed float64 // seconds
	Output  string
}

// test runs the tests of one package.
func (r *results) test(ctx context.Context, o options, p compiled, env []string) {
	run := exec.CommandContext(ctx, "go", append([]string{"tool", "test2json", "-t", "-p", p.name, p.binary}, o.test...)...)
	run.Dir, run.Env, run.Stderr = p.folder, env, os.Stderr
	lines, err := run.StdoutPipe()
	if err == nil {
		err = run.Start()
	}
	if err != nil {
		r.fail(p.name, err.Error())
		return
	}
	began, passed, failed, output := time.Now(), false, false, map[string]*strings.Builder{}
	scanner := bufio.NewScanner(lines)
	scanner.Buffer(nil, 64<<20)
	for scanner.Scan() {
		var e event
		if json.Unmarshal(scanner.Bytes(), &e) != nil {
			continue
		}
		test, sub, _ := strings.Cut(e.Test, "/")
		if output[test] == nil {
			output[test] = &strings.Builder{}
		}
		switch {
		case e.Action == "output":
			output[test].WriteString(e.Output)
		case sub != "" || e.Action != "pass" && e.Action != "fail" && e.Action != "skip":
		case test == "":
			passed = e.Action == "pass"
		default:
			failed = failed || e.Action == "fail"
			r.end(p.name+"."+test, e, output[test].String())
			delete(output, test)
		}
	}
	err = run.Wait()
	if passed = passed && err == nil && scanner.Err() == nil; !passed && !failed {
		unfinished := &strings.Builder{}
		for _, test := range slices.Sorted(maps.Keys(output)) { // such as those that a panic ended
			unfinished.WriteString(output[test].String())
		}
		r.fail(p.name, unfinished.String())
	}
	used := run.ProcessState.UserTime() + run.ProcessState.SystemTime()
	fmt.Printf("%-5s%-60s %6.1f s, %6.1f s of CPU\n", map[bool]string{true: "ok", false: "FAIL"}[passed], p.name, time.Since(began).Seconds(),
		used.Seconds())
}

// end notes how a test ended.
func (r *results) end(test string, e event, output string) {
	r.mu.Lock()
	r.counts[e.Action]++
	r.longest = append(r.longest, outcome{test, time.Duration(e.Elapsed * float64(time.Second))})
	r.mu.Unlock()
	if e.Action == "fail" {
		r.fail(test, output)
	}
}

// fail prints the output of a test or package that failed, and keeps it.
func (r *results) fail(what, output string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed[what]++
	fmt.Printf("%s\nFAIL %s\n", output, what)
	if r.outputs == "" {
		return
	}
	path := filepath.Join(r.outputs, fmt.Sprintf("%s-%d.txt", strings.ReplaceAll(what, "/", "_"), r.failed[what]))
	err := os.MkdirAll(r.outputs, 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(output), 0o644)
	}
	if err != nil {
		fmt.Printf("the output is not kept: %s\n", err)
	}
}

// printRound prints what a round cost, and forgets how long its tests took.
func (r *results) printRound(took, used time.Duration) {
	const most = 20
	slices.SortFunc(r.longest, func(a, b outcome) int { return int(b.took - a.took) })
	fmt.Println("the tests that took longest:")
	for _, o := range r.longest[:min(most, len(r.longest))] {
		fmt.Printf("%8.1f s  %s\n", o.took.Seconds(), o.test)
	}
	fmt.Printf("%.0f s of CPU, Postgres and all other processes included, in %.0f s\n", used.Seconds(), took.Seconds())
	r.rounds, r.longest = r.rounds+1, nil
}

// print prints what failed in all rounds, and reports whether nothing did.
func (r *results) print() bool {
	for _, test := range slices.Sorted(maps.Keys(r.failed)) {
		fmt.Printf("%s failed %d times of %d\n", test, r.failed[test], r.rounds)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", r.counts["pass"], r.counts["fail"], r.counts["skip"])
	return len(r.failed) == 0
}
