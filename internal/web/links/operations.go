package links

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
)

func trendingOperation() *web.Operation {
	return &web.Operation{
		Name: "trending", Summary: say("api_trending"), Parameters: Parameters(ranking.ParameterNames(), nil),
		Returns: trendingJSON{}, Codes: []int{http.StatusNotModified, http.StatusBadRequest},
	}
}

func streamOperation() *web.Operation {
	return &web.Operation{
		Name: "trendingStream", Summary: say("api_stream"), Parameters: Parameters(streamParameters(), nil),
		Type: "text/event-stream", Codes: []int{http.StatusBadRequest},
		Events: map[string]any{"snapshot": liveSnapshot{}, "change": liveChange{}, "state": streamState{}},
	}
}

func linkOperation() *web.Operation {
	return &web.Operation{
		Name: "link", Summary: say("api_link"), Parameters: linkDescribed(linkParameters()), Returns: ranking.LinkSummary{},
		Codes: linkCodes(),
	}
}

func sharesOperation() *web.Operation {
	return &web.Operation{
		Name: "linkShares", Summary: say("api_shares"), Parameters: linkDescribed(shareParameters()), Returns: sharesJSON{},
		Codes: linkCodes(),
	}
}

func linkCodes() []int {
	return []int{http.StatusTemporaryRedirect, http.StatusBadRequest, http.StatusNotFound}
}

func linkDescribed(names []string) []web.Parameter {
	id := web.Parameter{Name: "id", About: say("api_id"), Number: true}
	return append([]web.Parameter{id}, Parameters(names, map[string]any{"window": linkWindow})...)
}

// Parameters describes parameters of a ranking to clients. Some may have other defaults than in the ranking.
func Parameters(names []string, defaults map[string]any) (all []web.Parameter) {
	for _, known := range ranking.Parameters(ranking.Limits{Default: DefaultLimit, Most: maxLimit}) {
		if slices.Contains(names, known.Name) {
			p := described(known)
			if other, ok := defaults[p.Name]; ok {
				p.Default = other
			}
			all = append(all, p)
		}
	}
	return all
}

func described(known ranking.Parameter) web.Parameter {
	p := web.Parameter{Name: known.Name, About: say("api_" + known.Name)}
	if known.Default != "" {
		p.Default = known.Default
	}
	last := 0
	if known.Expected == ranking.WholeNumber || known.Expected == ranking.Words {
		last, _ = strconv.Atoi(known.Values[len(known.Values)-1]) // the ranking wrote it
	}
	switch known.Expected {
	case ranking.OneOf, ranking.SomeOf:
		p.Values, p.Several = known.Values, known.Expected == ranking.SomeOf
	case ranking.WholeNumber:
		p.Number, p.Most = true, last
		p.Default, _ = strconv.Atoi(known.Default)
	case ranking.Words:
		p.Longest = last
	}
	return p
}
