package ranking

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/words"
)

// DefaultWindow is the window of a ranking if the request names none.
const DefaultWindow = "6h"

// most is the maximum of at_least.
const most = 1_000_000

// ParameterError reports a parameter of a ranking with an invalid value.
type ParameterError struct {
	Name, Value string
	Expected    Expected
	Values      []string // the valid values, or the lowest and the highest number
}

func (e *ParameterError) Error() string { return fmt.Sprintf("%s is %q", e.Name, e.Value) }

// Expected is the kind of value that a parameter accepts. The page has the text for
// each.
type Expected string

// The kinds of values.
const (
	OneOf        Expected = "one_of"
	SomeOf       Expected = "some_of"
	WholeNumber  Expected = "number"
	Host         Expected = "host"
	Words        Expected = "words"
	Account      Expected = "account"
	Target       Expected = "target"
	BesideAWatch Expected = "beside_watch"
	AnyCursor    Expected = "cursor" // the ranking itself finds out whether it is valid
)

// Parameter describes a parameter that ParseQuery knows.
type Parameter struct {
	Name     string
	Expected Expected
	Values   []string // the valid values, or the lowest and the highest number, or the largest number of characters
	Default  string   // empty: every value, or none
}

// Parameters describes the parameters that ParseQuery knows, in order.
func Parameters(limits Limits) []Parameter {
	return []Parameter{
		{"window", OneOf, windowNames(), DefaultWindow},
		{"sort", OneOf, names(Sharers, Speed, Newest), string(Sharers)},
		{"at_least", WholeNumber, []string{"1", strconv.Itoa(most)}, "1"},
		{"ways", SomeOf, Ways(), ""},
		{"network", OneOf, append(names(Bluesky, Nostr), both), both},
		{"domain", Host, nil, ""},
		{"text", Words, []string{strconv.Itoa(words.MaxText)}, ""},
		{"by", Account, nil, ""},
		{"watch", Target, nil, ""},
		{"degree", OneOf, append(names(FirstDegree, SecondDegree), both), both},
		{"limit", WholeNumber, []string{"1", strconv.Itoa(limits.Most)}, strconv.Itoa(limits.Default)},
		{"cursor", AnyCursor, nil, ""},
	}
}

// ParameterNames returns the names of the parameters that ParseQuery knows.
func ParameterNames() []string {
	var all []string
	for _, p := range Parameters(Limits{}) {
		all = append(all, p.Name)
	}
	return all
}

// Limits are the default and the maximum number of links on a page.
type Limits struct{ Default, Most int }

// ParseQuery reads a query from the parameters of a request or a command. value returns
// the text of a parameter, or false if the parameter was not given. An empty domain,
// text, by or watch counts as not given, because forms send them. The error is a
// *ParameterError.
func ParseQuery(value func(name string) (text string, given bool), limits Limits) (q Query, err error) {
	q = Query{Sort: Sharers, Limit: limits.Default}
	q.Window, _ = windowNamed(DefaultWindow)
	read := q.readers(limits)
	for _, p := range Parameters(limits) {
		text, given := value(p.Name)
		if !given {
			continue
		}
		if p.Name == "degree" && text != both && q.Watch == "" {
			p.Expected, p.Values = BesideAWatch, nil
		} else if read[p.Name](text) {
			continue
		}
		if strings.HasPrefix(strings.ToLower(text), "nsec1") { // error messages must not repeat a secret key
			text = "nsec1…"
		}
		return q, &ParameterError{p.Name, text, p.Expected, p.Values}
	}
	return q, nil
}

// readers returns how each parameter is read into the query. They report whether its text is valid.
func (q *Query) readers(limits Limits) map[string]func(text string) (ok bool) {
	return map[string]func(text string) (ok bool){
		"window": func(text string) (ok bool) {
			q.Window, ok = windowNamed(text)
			return ok
		},
		"sort":     func(text string) bool { return oneOf(&q.Sort, text, Sharers, Speed, Newest) },
		"at_least": func(text string) bool { return number(&q.AtLeast, text, most) },
		"ways": func(text string) bool {
			q.Ways = strings.Split(text, ",")
			return someOf(q.Ways, Ways())
		},
		"network": func(text string) bool { return text == both || oneOf(&q.Network, text, Bluesky, Nostr) },
		"domain": func(text string) (ok bool) {
			q.Site, ok = domain(text)
			return ok || text == ""
		},
		"text": func(text string) bool {
			q.Text = strings.TrimSpace(text)
			return utf8.ValidString(text) && utf8.RuneCountInString(q.Text) <= words.MaxText
		},
		"by": func(text string) (ok bool) {
			q.By, ok = account(text)
			return ok || text == ""
		},
		"watch": func(text string) bool {
			q.Watch = strings.TrimPrefix(text, "@")
			return len(text) <= maxTarget && utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
		},
		"degree": func(text string) bool { return text == both || oneOf(&q.Degree, text, FirstDegree, SecondDegree) },
		"limit":  func(text string) bool { return number(&q.Limit, text, limits.Most) },
		"cursor": func(text string) bool { q.After = Cursor(text); return true },
	}
}

// both stands for both networks, or both degrees.
const both = "both"

// maxTarget limits the target of a watch, in bytes.
const maxTarget = 4096

// windowNamed returns the length of the window with a name.
func windowNamed(name string) (time.Duration, bool) {
	at := slices.IndexFunc(Windows(), func(w Window) bool { return w.Name == name })
	if at < 0 {
		return 0, false
	}
	return Windows()[at].Length, true
}

func windowNames() (names []string) {
	for _, w := range Windows() {
		names = append(names, w.Name)
	}
	return names
}

func names[T ~string](all ...T) []string {
	names := make([]string, len(all))
	for i, each := range all {
		names[i] = string(each)
	}
	return names
}

func oneOf[T ~string](to *T, text string, all ...T) bool {
	*to = T(text)
	return slices.Contains(all, *to)
}

// number reads a whole number from 1 to highest, in decimal digits only.
func number(to *int, text string, highest int) bool {
	n, err := strconv.Atoi(text)
	*to = n
	return err == nil && n >= 1 && n <= highest && strconv.Itoa(n) == text
}

// someOf reports whether all words are in a list, each at most once.
func someOf(words, list []string) bool {
	for i, word := range words {
		if !slices.Contains(list, word) || slices.Contains(words[:i], word) {
			return false
		}
	}
	return true
}

var hostSyntax = regexp.MustCompile(`^[\pL\pN_]([\pL\pM\pN_.:-]*[\pL\pM\pN_])?$`)

// IsDomain reports whether site is a valid value of the parameter domain.
func IsDomain(site string) bool {
	asked, ok := domain(site)
	return ok && asked == site
}

// domain returns a host in the form of links.site: in ASCII.
func domain(text string) (site string, ok bool) {
	text = strings.TrimSuffix(text, ".")
	if !hostSyntax.MatchString(text) {
		return "", false
	}
	host, err := link.ASCIIHost(text)
	site = strings.TrimPrefix(host, "www.")
	return site, err == nil && len(site) <= 255 && hostSyntax.MatchString(site)
}

// account returns a handle or a DID in the form of the table accounts. It converts an
// npub to its DID.
func account(text string) (string, bool) {
	if n, err := nostr.ParseName(text); err == nil && n.Prefix == "npub" {
		return nostr.DID(n.Key), true
	}
	id, err := syntax.ParseAtIdentifier(strings.TrimPrefix(text, "@"))
	if err != nil {
		return "", false
	}
	return id.Normalize().String(), true
}

// Parameter returns the text of a parameter as ParseQuery reads it, or "" if the query
// has the default. limit is the default number of links on a page.
func (q Query) Parameter(name string, limit int) string {
	unless := func(text, otherwise string) string {
		if text == otherwise {
			return ""
		}
		return text
	}
	switch name {
	case "window":
		at := slices.IndexFunc(Windows(), func(w Window) bool { return w.Length == q.Window })
		return unless(Windows()[max(at, 0)].Name, DefaultWindow)
	case "sort":
		return unless(string(q.Sort), string(Sharers))
	case "at_least":
		return unless(strconv.Itoa(q.least()), "1")
	case "ways":
		return strings.Join(slices.DeleteFunc(Ways(), func(way string) bool { return !slices.Contains(q.OnlyWays(), way) }), ",")
	case "network":
		return string(q.Network)
	case "domain":
		return q.Site
	case "text":
		return q.Text
	case "by":
		return q.By
	case "watch":
		return q.Watch
	case "degree":
		return string(q.Degree)
	case "limit":
		return unless(strconv.Itoa(q.Limit), strconv.Itoa(limit))
	case "cursor":
		return string(q.After)
	}
	return ""
}
