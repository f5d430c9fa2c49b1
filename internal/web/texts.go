package web

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
)

//go:embed texts.txt
var textFile string

// Texts are the texts of pages, by key.
type Texts map[string]string

// texts are the lines of texts.txt.
var texts = sync.OnceValue(func() Texts { return ParseTexts(textFile) })

// ParseTexts reads a file like texts.txt.
func ParseTexts(file string) Texts {
	all := make(Texts)
	for line := range strings.Lines(file) {
		if key, text, ok := strings.Cut(strings.TrimSpace(line), " = "); ok && !strings.HasPrefix(line, "#") {
			all[key] = text
		}
	}
	return all
}

// mergeTexts returns the texts of the page and its parts, which have different keys.
func mergeTexts(parts []Part) (Texts, error) {
	all := maps.Clone(texts())
	for _, part := range parts {
		for key, text := range part.Texts {
			if _, twice := all[key]; twice {
				return nil, fmt.Errorf("two parts of the page have a text %q", key)
			}
			all[key] = text
		}
	}
	return all, nil
}

// say returns a text of the page with its values inserted.
func say(key string, values ...any) string { return texts().Say(key, values...) }

// Say returns a text with its values inserted. A key that is missing is the page's own. A
// number as the first value selects the singular or plural form.
func (t Texts) Say(key string, values ...any) string {
	text, ok := t[key]
	if !ok {
		text = texts()[key]
	}
	if one, many, ok := strings.Cut(text, " | "); ok {
		text = many
		if len(values) > 0 && fmt.Sprint(values[0]) == "1" {
			text = one
		}
	}
	pairs := make([]string, 0, 2*len(values))
	for i, value := range values {
		if n, ok := value.(int); ok {
			value = Grouped(n)
		}
		pairs = append(pairs, "{"+strconv.Itoa(i)+"}", fmt.Sprint(value))
	}
	return strings.NewReplacer(pairs...).Replace(text) // in one pass, because a value may contain {1}
}

// Grouped formats a count with commas between thousands.
func Grouped(n int) string {
	digits := strconv.Itoa(n)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// scriptTexts returns the texts that the script uses, as JSON.
func scriptTexts(all Texts) string {
	chosen := make(map[string]string)
	for key, text := range all {
		if name, ok := strings.CutPrefix(key, "js_"); ok {
			chosen[name] = text
		} else if strings.HasPrefix(key, "age_") {
			chosen[key] = text
		}
	}
	encoded, _ := json.Marshal(chosen) // texts can be written
	return string(encoded)
}
