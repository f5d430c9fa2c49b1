package app

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/schema"
)

const configurationFile = "../docs/configuration.md"

var update = flag.Bool("update", false, "write docs/configuration.md")

// TestConfigurationIsDocumented checks that docs/configuration.md matches the
// variables. `go generate ./app` writes it.
func TestConfigurationIsDocumented(t *testing.T) {
	t.Parallel()
	want := configurationDocument(t)
	if *update {
		require.NoError(t, os.WriteFile(configurationFile, []byte(want), 0o644))
	}
	got, err := os.ReadFile(configurationFile)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "run `go generate ./app`")
}

// configurationDocument returns the struct Config, and those of the features, as a document.
func configurationDocument(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(configurationHead)
	documentVariables(t, &b, reflect.TypeFor[Config]())
	for _, f := range Features() {
		if f.Config != nil {
			fmt.Fprintf(&b, "\n## %s%s\n", strings.ToUpper(f.Name[:1]), f.Name[1:])
			documentVariables(t, &b, reflect.TypeOf(f.Config).Elem())
		}
	}
	return b.String()
}

// documentVariables documents the fields of a struct. A comment between them is a heading.
func documentVariables(t *testing.T, b *strings.Builder, of reflect.Type) {
	t.Helper()
	folder := filepath.Join("..", strings.TrimPrefix(of.PkgPath(), "github.com/weir-social/weir"))
	files := token.NewFileSet()
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	require.NoError(t, err)
	var file *ast.File
	var list *ast.FieldList
	for _, path := range paths {
		parsed, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok && spec.Name.Name == of.Name() {
				file, list = parsed, spec.Type.(*ast.StructType).Fields
			}
			return list == nil
		})
	}
	require.NotNil(t, list, "%s is not in %s", of, folder)
	attached := map[*ast.CommentGroup]bool{}
	for _, field := range list.List {
		attached[field.Doc] = true
	}
	headings := map[int]string{} // by line
	for _, group := range file.Comments {
		if group.Pos() > list.Opening && group.End() < list.Closing && !attached[group] {
			headings[files.Position(group.Pos()).Line] = strings.TrimSpace(group.Text())
		}
	}
	line := files.Position(list.Opening).Line
	for i, field := range list.List {
		tag := of.Field(i).Tag
		if tag.Get("env") == "" {
			continue
		}
		require.NotNil(t, field.Doc, "%s has no comment", field.Names[0].Name)
		require.Len(t, field.Names, 1)
		for start := files.Position(field.Pos()).Line; line < start; line++ {
			if heading := headings[line]; heading != "" {
				fmt.Fprintf(b, "\n## %s\n", heading)
			}
		}
		fmt.Fprintf(b, "\n### `%s`\n\n%s", tag.Get("env"), documentText(field.Doc.Text()))
		if list := strings.Split(tag.Get("envDefault"), ","); len(list) > 1 {
			b.WriteString("\nDefault:\n\n")
			for _, one := range list {
				fmt.Fprintf(b, "- `%s`\n", one)
			}
		} else if list[0] != "" {
			fmt.Fprintf(b, "\nDefault: `%s`\n", list[0])
		}
	}
}

const configurationHead = `<!-- Made from app/config.go and the features' variables by "go generate ./app". -->
# Configuration

Weir is configured by environment variables. A misspelt ` + "`WEIR_`" + ` variable is an error that names the nearest one.
` + "`weir config`" + ` prints the configuration in force, with secrets masked, and checks it as ` + "`weir serve`" + ` does.
Durations are written as ` + "`90s`, `5m`, `24h`" + `.

The usual ` + "`OTEL_`" + ` variables set where traces are sent: see [operations.md](operations.md).
`

// documentText wraps a comment at 120 characters, and formats the names of
// variables and tables in it as code.
func documentText(comment string) string {
	var b strings.Builder
	width := 0
	for _, word := range strings.Fields(comment) {
		bare := strings.TrimRight(word, ".,:;")
		if strings.Contains(bare, "_") {
			word = "`" + bare + "`" + word[len(bare):]
		}
		switch {
		case width == 0:
		case width+1+len(word) > 120:
			b.WriteByte('\n')
			width = 0
		default:
			b.WriteByte(' ')
			width++
		}
		b.WriteString(word)
		width += len(word)
	}
	b.WriteByte('\n')
	return b.String()
}

// TestPublicAddressIsChecked shows that an address with a path or another
// scheme is refused: it would be ignored silently.
func TestPublicAddressIsChecked(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"", "https://weir.example", "http://weir.example:8443/", "https://[2001:db8::1]"} {
		require.NoError(t, second(Config{URL: good}.hosts()), good)
	}
	for _, wrong := range []string{
		"weir.example", "ftp://weir.example", "https://weir.example/path", "https://weir.example/?a=b", "https://u:p@weir.example", "https://",
		"https://we ir",
	} {
		require.ErrorContains(t, second(Config{URL: wrong}.hosts()), "WEIR_URL is ", wrong)
	}
	require.ErrorContains(t, second(Config{TrustedProxies: []string{"proxy.example"}}.proxies()),
		`WEIR_TRUSTED_PROXIES: "proxy.example" is not an IP address`)
	require.NoError(t, second(Config{TrustedProxies: []string{"10.0.0.0/8", "::1"}}.proxies()))
}

func second[T any](_ T, err error) error { return err }

func TestVerificationIsKnown(t *testing.T) {
	t.Parallel()
	for verify, valid := range map[string]bool{VerifyWhole: true, VerifySigned: true, VerifyChained: true, "": false, "proven": false} {
		c := Config{Source: "firehose", Verify: verify}
		if err := c.checkSource(); valid {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "expected whole, signed or chained")
		}
	}
}

func TestStartIsAPlaceOrATime(t *testing.T) {
	t.Parallel()
	for start, want := range map[string]consumer.Cursor{
		"tip": {}, "oldest": {Kind: consumer.CursorSeq},
		"2026-08-01T12:00:00Z":      {Kind: consumer.CursorTime, Value: 1785585600_000000},
		"2026-08-01T14:00:00+02:00": {Kind: consumer.CursorTime, Value: 1785585600_000000},
	} {
		got, err := Config{Start: start}.start()
		require.NoError(t, err)
		require.Equal(t, want, got, start)
	}
	for _, wrong := range []string{"", "yesterday", "12:00", "20000000000", "1969-01-01T00:00:00Z"} {
		_, err := Config{Start: wrong}.start()
		require.ErrorContains(t, err, "WEIR_START is", wrong)
	}
}

// TestDeadLetterLimitsAreRead shows that the limits keep their order.
func TestDeadLetterLimitsAreRead(t *testing.T) {
	t.Setenv("WEIR_DEAD_LETTER_LIMITS", "com.example.note=0, pub.layers.*=100")
	cfg, err := ReadConfig()
	require.NoError(t, err)
	require.Equal(t, []health.DeadLetterLimit{{Pattern: "com.example.note"}, {Pattern: "pub.layers.*", Most: 100}}, cfg.Limits().Collections)
	for _, entry := range []string{
		"com.example.note", "com.example.note=-1", "note=1", "com.example.note=x", "com.example.note=1,com.example.note=2",
	} {
		t.Setenv("WEIR_DEAD_LETTER_LIMITS", entry)
		_, err := ReadConfig()
		require.ErrorContains(t, err, "WEIR_DEAD_LETTER_LIMITS", entry)
	}
}

// TestDeclarationsAreStoredWithPosts shows that the declarations of accounts are requested and kept for
// ever, whatever else the configuration names, unless no posts are stored.
func TestDeclarationsAreStoredWithPosts(t *testing.T) {
	t.Parallel()
	standard := collection.Entry{Pattern: schema.DeclarationCollection, Explicit: true}
	for _, named := range [][]string{
		{"app.bsky.feed.post"}, {"app.bsky.feed.*=48h"}, {"app.bsky.*=48h"}, {"nostr.1", "app.bsky.feed.post", standard.Pattern + "=24h"},
	} {
		stored, err := Config{Collections: named, Retention: 24 * time.Hour}.stored()
		require.NoError(t, err)
		found, _ := stored.Find(standard.Pattern)
		require.Equal(t, standard, found, named)
	}
	stored, err := Config{Collections: []string{"nostr.1"}}.stored()
	require.NoError(t, err)
	require.False(t, stored.Stores(standard.Pattern))
}
