package web

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

//go:embed texts.txt
var textFile string

// texts are the lines of texts.txt, by key.
var texts = sync.OnceValue(func() map[string]string {
	all := make(map[string]string)
	for line := range strings.Lines(textFile) {
		if key, text, ok := strings.Cut(strings.TrimSpace(line), " = "); ok && !strings.HasPrefix(line, "#") {
			all[key] = text
		}
	}
	return all
})

// say returns a text of the page with its values inserted. A number as the first value
// selects the singular or plural form.
func say(key string, values ...any) string {
	text := texts()[key]
	if one, many, ok := strings.Cut(text, " | "); ok {
		text = many
		if len(values) > 0 && fmt.Sprint(values[0]) == "1" {
			text = one
		}
	}
	pairs := make([]string, 0, 2*len(values))
	for i, value := range values {
		if n, ok := value.(int); ok {
			value = grouped(n)
		}
		pairs = append(pairs, "{"+strconv.Itoa(i)+"}", fmt.Sprint(value))
	}
	return strings.NewReplacer(pairs...).Replace(text) // in one pass, because a value may contain {1}
}

// scriptTexts returns the texts that the script uses, as JSON.
var scriptTexts = sync.OnceValue(func() string {
	chosen := make(map[string]string)
	for key, text := range texts() {
		if name, ok := strings.CutPrefix(key, "js_"); ok {
			chosen[name] = text
		} else if strings.HasPrefix(key, "age_") || key == "updated" {
			chosen[key] = text
		}
	}
	encoded, _ := json.Marshal(chosen) //nolint:errcheck // texts can be written
	return string(encoded)
})
