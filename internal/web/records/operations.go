package records

import (
	"net/http"

	"github.com/weir-social/weir/internal/lexicon/records"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/internal/words"
)

// Limits on what is read about records.
const (
	defaultLimit      = 50
	maxLimit          = 200
	defaultDepth      = 1
	defaultPathDepth  = 4
	defaultEdges      = 200
	maxEdges          = 2000
	pathEdges         = 4000 // default number of edges that a search for paths visits
	defaultReferences = 50
)

// The parameters of queries.

func numberParameter(name string, standard, most int) web.Parameter {
	return web.Parameter{Name: name, About: say("record_api_" + name), Number: true, Default: standard, Most: most}
}

func textParameter(name string) web.Parameter {
	return web.Parameter{Name: name, About: say("record_api_" + name)}
}

func required(p web.Parameter) web.Parameter {
	p.Required = true
	return p
}

func pageParameters() []web.Parameter {
	return []web.Parameter{numberParameter("limit", defaultLimit, maxLimit), textParameter("cursor")}
}

func recordParameters() []web.Parameter {
	return []web.Parameter{numberParameter("limit", defaultReferences, maxLimit)}
}

func searchParameters() []web.Parameter {
	q := required(textParameter("q"))
	q.Longest = words.MaxText
	return append([]web.Parameter{q, textParameter("collection"), textParameter("language"), textParameter("media")}, pageParameters()...)
}

func graphParameters() []web.Parameter {
	return []web.Parameter{numberParameter("depth", defaultDepth, records.MaxDepth), numberParameter("limit", defaultEdges, maxEdges)}
}

func pathsParameters() []web.Parameter {
	return []web.Parameter{
		required(textParameter("from")), required(textParameter("to")), numberParameter("depth", defaultPathDepth, records.MaxDepth),
		numberParameter("limit", pathEdges, records.MaxEdges),
	}
}

// The operations.

func operation(name string, returns any, parameters []web.Parameter, path ...string) *web.Operation {
	op := &web.Operation{Name: name, Summary: say("record_api_of_" + name), Returns: returns, Codes: []int{http.StatusBadRequest}}
	for _, part := range path {
		op.Parameters = append(op.Parameters, textParameter(part))
	}
	op.Parameters = append(op.Parameters, parameters...)
	return op
}

// notFound adds the status of a request for something that is not there.
func notFound(op *web.Operation) *web.Operation {
	op.Codes = append(op.Codes, http.StatusNotFound)
	return op
}

func recordsOperation() *web.Operation {
	return operation("records", recordsJSON{}, pageParameters(), "collection")
}

func recordOperation() *web.Operation {
	return notFound(operation("record", records.Detail{}, recordParameters(), "collection", "did", "rkey"))
}

func referencesOperation() *web.Operation {
	return notFound(operation("references", records.References{}, pageParameters(), "collection", "did", "rkey"))
}

func referrersOperation() *web.Operation {
	return operation("referrers", records.Referrers{}, pageParameters(), "collection", "did", "rkey")
}

func searchOperation() *web.Operation { return operation("search", matchesJSON{}, searchParameters()) }

func graphOperation() *web.Operation {
	return operation("graph", graphJSON{}, graphParameters(), "uri")
}

func pathsOperation() *web.Operation { return operation("paths", pathsJSON{}, pathsParameters()) }
