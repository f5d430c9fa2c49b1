package app

import (
	"fmt"
	"os"
	"slices"

	"github.com/weir-social/weir/collection"
	"github.com/weir-social/weir/consumer/firehose"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/lexicon/rules"
	"github.com/weir-social/weir/syntax"
	"github.com/weir-social/weir/workers"
)

// judged returns the collections whose records are judged; none: there are no lexicons.
// Links have collections of their own.
func (c Config) judged() (patterns []string) {
	if c.Lexicons == "" && len(c.ResolveLexicons) == 0 {
		return nil
	}
	for _, e := range c.registry().Entries() {
		if !slices.ContainsFunc(jobs.Links().Collections, func(name string) bool { return collection.Match(e.Pattern, name) }) {
			patterns = append(patterns, e.Pattern)
		}
	}
	return patterns
}

// checkLexicons returns an error if the variables of lexicons cannot be used.
func (c Config) checkLexicons() error {
	for _, name := range c.ResolveLexicons {
		if !syntax.IsNSID(name) {
			return fmt.Errorf("WEIR_RESOLVE_LEXICONS names %q: expected names of schemas such as com.example.note", name)
		}
	}
	for _, pattern := range c.StrictLexicons {
		if err := collection.CheckPattern(pattern); err != nil {
			return fmt.Errorf("WEIR_STRICT_LEXICONS: %w", err)
		}
	}
	if c.Lexicons == "" {
		return nil
	}
	if info, err := os.Stat(c.Lexicons); err != nil || !info.IsDir() {
		return fmt.Errorf("WEIR_LEXICONS is %q: expected a folder of schema files", c.Lexicons)
	}
	return nil
}

// lexicons returns the configuration of the workers that judge records.
func (c Config) lexicons() workers.Lexicons {
	l := workers.Lexicons{Resolve: c.ResolveLexicons, Strict: c.StrictLexicons, Read: firehose.ReadRecord, Rules: rules.Standard()}
	if c.Lexicons != "" {
		l.Folder = os.DirFS(c.Lexicons)
	}
	return l
}
