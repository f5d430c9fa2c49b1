package health

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-social/weir/schema"
)

// Feature is what a feature of Weir adds to the report, the metrics and the alerts.
type Feature struct {
	Fields     []string // of the report, besides those of the figures
	Figures    []Figure
	Conditions []Condition // that it may report, without their messages
	Read       func(ctx context.Context, db schema.DB, now time.Time) (Reading, error)
}

// Figure is a number of a feature: a field of the report, and a metric.
type Figure struct {
	Name     string // of the field; that of an object has the object's name and a dot in front
	Metric   string // the name of the metric, without weir_
	Help     string // of the metric
	Optional bool   // without a value, the field is null and there is no metric; otherwise it is 0

	MetricOnly bool // the report has no field of it
}

// Reading is what a feature read from the database.
type Reading struct {
	Values   map[string]float64 // by the name of the figure
	Fields   map[string]any     // by name; null without a value
	Messages map[string]string  // of the conditions that hold, by their names, with a blank and the component if they have one
}

// readFeature adds the figures and conditions of a feature.
func (r *Report) readFeature(ctx context.Context, db schema.DB, f Feature) error {
	read, err := f.Read(ctx, db, r.at)
	if err != nil {
		return err
	}
	r.addFigures(f, read)
	for _, name := range slices.Sorted(maps.Keys(read.Messages)) {
		for _, c := range f.Conditions {
			if is, component, _ := strings.Cut(name, " "); is == c.Name {
				c.Component, c.Message = component, read.Messages[name]
				r.problems = append(r.problems, c)
			}
		}
	}
	return nil
}

func (r *Report) addFigures(f Feature, read Reading) {
	if r.figures == nil {
		r.figures, r.fields = map[string]*float64{}, map[string]any{}
	}
	for _, figure := range f.Figures {
		var value *float64
		if v, known := read.Values[figure.Name]; known || !figure.Optional {
			value = &v
		}
		if r.figures[figure.Name] = value; !figure.MetricOnly {
			r.fields[figure.Name] = value
		}
	}
	for _, name := range f.Fields {
		r.fields[name] = read.Fields[name]
	}
}

// MarshalJSON adds the figures of features to the fields.
func (r Report) MarshalJSON() ([]byte, error) {
	type fields Report
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // the outer encoder decides
	if err := encoder.Encode(fields(r)); err != nil || len(r.fields) == 0 {
		return out.Bytes(), err
	}
	nested := map[string]any{}
	for name, v := range r.fields {
		in, path := nested, strings.Split(name, ".")
		for _, object := range path[:len(path)-1] {
			inner, ok := in[object].(map[string]any)
			if !ok {
				inner = map[string]any{}
				in[object] = inner
			}
			in = inner
		}
		in[path[len(path)-1]] = v
	}
	figures, err := json.Marshal(nested)
	return append(append(bytes.TrimSuffix(out.Bytes(), []byte("}\n")), ','), figures[1:]...), err
}
