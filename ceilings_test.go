package weir_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	widestLine      = 140 // characters; a tab counts as one
	longestFunction = 80  // lines
	longestFile     = 700 // lines: a type and what belongs to it stay together
	widestStruct    = 15  // fields; what changes together is a type of its own
)

// rowsAndMessages are the structs that have as many fields as what they describe: the variables, a row, a message, a file.
func rowsAndMessages() []string {
	return []string{
		"app/config.go Config", "consumer/firehose/frame.go frame", "consumer/source.go Event", "internal/archive/manifest.go Manifest",
		"internal/lexicon/schema.go source", "internal/links/link/sites.go siteRules", "internal/ops/health/health.go Report",
		"internal/ranking/link_shares.go LinkShare", "internal/ranking/link_summary.go LinkSummary", "internal/testing/simnet/log.go Entry",
		"schema/dead_letters.go StoredDeadLetter", "schema/streams.go StreamStatus",
	}
}

// TestCeilings keeps functions, structs and files readable, tests too. It keeps testify's waits out of them:
// these check again at once if a check takes longer than their interval.
func TestCeilings(t *testing.T) {
	t.Parallel()
	files, wide := 0, []string{}
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != "." {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		files++
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		assert.LessOrEqual(t, set.File(file.Pos()).LineCount(), longestFile+1, "%s is too long: split it by its nouns", path)
		for _, declared := range file.Decls {
			if f, ok := declared.(*ast.FuncDecl); ok {
				lines := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1
				assert.LessOrEqual(t, lines, longestFunction, "%s: %s is too long", path, f.Name.Name)
			}
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if spec, ok := node.(*ast.TypeSpec); ok && fieldsOf(spec) > widestStruct {
				wide = append(wide, path+" "+spec.Name.Name)
			}
			called, ok := node.(*ast.SelectorExpr)
			assert.False(t, ok && slices.Contains([]string{"Eventually", "EventuallyWithT", "Never"}, called.Sel.Name),
				"%s: call eventually.True instead", path)
			return true
		})
		return nil
	}))
	require.Greater(t, files, 100)
	excepted := slices.DeleteFunc(rowsAndMessages(), func(name string) bool {
		path, _, _ := strings.Cut(name, " ")
		_, err := os.Stat(path) // a feature may have been removed
		return err != nil
	})
	require.ElementsMatch(t, excepted, wide, "a struct has more than %d fields", widestStruct)
}

// fieldsOf returns the number of fields of a struct; what it embeds is one.
func fieldsOf(spec *ast.TypeSpec) (n int) {
	if s, ok := spec.Type.(*ast.StructType); ok {
		for _, field := range s.Fields.List {
			n += max(1, len(field.Names))
		}
	}
	return n
}

// TestLinesOfCode keeps lines readable. The tag of a field, which cannot be broken, does not count.
func TestLinesOfCode(t *testing.T) {
	t.Parallel()
	tag := regexp.MustCompile("`env:\"[^`]*`")
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != "." {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for i, line := range strings.Split(string(text), "\n") {
			width := utf8.RuneCountInString(tag.ReplaceAllString(line, ""))
			assert.LessOrEqual(t, width, widestLine, "%s:%d is too long", path, i+1)
		}
		return nil
	}))
}
