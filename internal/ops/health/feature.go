package health

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/weir-social/weir/schema"
)

// Feature is what a feature of Weir adds to the report, the metrics and the alerts.
type Feature struct {
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
}

// Reading is what a feature read from the database.
type Reading struct {
	Values   map[string]float64 // by the name of the figure
	Messages map[string]string  // of the conditions that hold, by their names
}

// readFeature adds the figures and conditions of a feature.
func (r *Report) readFeature(ctx context.Context, db schema.DB, f Feature) error {
	read, err := f.Read(ctx, db, r.at)
	if err != nil {
		return err
	}
	r.addFigures(f, read.Values)
	for _, c := range f.Conditions {
		if message, holds := read.Messages[c.Name]; holds {
			c.Message = message
			r.problems = append(r.problems, c)
		}
	}
	return nil
}

func (r *Report) addFigures(f Feature, values map[string]float64) {
	if r.figures == nil {
		r.figures = map[string]*float64{}
	}
	for _, figure := range f.Figures {
		if v, known := values[figure.Name]; known || !figure.Optional {
			r.figures[figure.Name] = &v
		} else {
			r.figures[figure.Name] = nil
		}
	}
}

// MarshalJSON adds the figures of features to the fields.
func (r Report) MarshalJSON() ([]byte, error) {
	type fields Report
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // the outer encoder decides
	if err := encoder.Encode(fields(r)); err != nil || len(r.figures) == 0 {
		return out.Bytes(), err
	}
	nested := map[string]any{}
	for name, v := range r.figures {
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
