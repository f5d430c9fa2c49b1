package link

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSites reads the pairs beside the rules. No two blocks are of the same sites.
func TestSites(t *testing.T) {
	t.Parallel()
	same, different := 0, 0
	blocks := map[string]bool{}
	for line := range strings.Lines(sitesText) {
		words := strings.Fields(line)
		if len(words) > 1 && slices.Contains([]string{"drop", "skip", "gift", "mark", "with"}, words[0]) {
			require.Equal(t, strings.ToLower(line), line, "names are compared in lower case")
		}
		if len(words) > 0 && words[0] == "site" {
			names := strings.Join(slices.Sorted(slices.Values(words)), " ")
			require.False(t, blocks[names], line)
			blocks[names] = true
		}
		if len(words) != 3 || words[0] != "+" && words[0] != "-" {
			continue
		}
		first, err := Parse(words[1])
		require.NoError(t, err, line)
		second, err := Parse(words[2])
		require.NoError(t, err, line)
		requireOneIdentity(t, first)
		requireOneIdentity(t, second)
		if words[0] == "+" {
			same++
			require.Equal(t, first.Identity, second.Identity, line)
			continue
		}
		different++
		require.NotEqual(t, first.Identity, second.Identity, line)
	}
	require.Greater(t, same, 100)
	require.Greater(t, different, 60)
}

// TestBadRulesAreRefused reads rules with mistakes.
func TestBadRulesAreRefused(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]string{
		"frob x":                              "unknown rule",
		"page /a":                             "no form",
		"page /a =":                           "no form",
		"page /{x = /":                        "has no }",
		"page /{x:q} = /{x}":                  "unknown class",
		"page /{x:n1z} = /{x}":                "length of the class",
		"page /{x} = /{y}":                    "captured nowhere",
		"page /{a}/{b}/{c}/{d}/{e} = /{a}":    "more than 4 captures",
		"same //{a}.{b}.{c}.{d}.{e} = a.test": "more than 4 captures",
	} {
		_, err := parseSites("site a.example\n\t" + rule)
		require.ErrorContains(t, err, want, rule)
	}
}

// TestRulesThatLeaveTheirSite lists the sites that other sites' addresses may lead to. There, a
// stranger must not be able to choose an address that names a page of somebody else.
func TestRulesThatLeaveTheirSite(t *testing.T) {
	t.Parallel()
	known := strings.Fields(`aliexpress.com arxiv.org bbc.co.uk bbc.com bsky.app chatgpt.com crbug.com dailymail.co.uk
	dailymotion.com derstandard.at
		discord.com doi.org espn.com facebook.com franceinfo.fr go.com go.dev hal.science huffpost.com huggingface.co
		independent.co.uk instagram.com komoot.com luma.com
		medium.com mozilla.org nicovideo.jp nih.gov notion.so npmjs.com nytimes.com openpetition.de osf.io
		pypi.org reddit.com rfc-editor.org ssrn.com steampowered.com t.me
		thetimes.com threads.com tiktok.com tumblr.com wa.me weibo.cn wikipedia.org x.com yahoo.com youtube.com`)
	left := map[string]bool{}
	for name, s := range rulesOf {
		for _, r := range slices.Concat(s.same, s.page, s.host, s.open) {
			// A host with a captured label is one of the same site.
			if len(r.form.host) == 1 && !strings.HasSuffix(name, "*") && !isUnder(r.form.host[0].text, domainOf(name)) {
				left[domainOf(r.form.host[0].text)] = true
			}
		}
	}
	require.Equal(t, known, slices.Sorted(maps.Keys(left)))
}
