package link

import (
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// requireOneIdentity checks the guarantees of an identity: the link's spelling
// has the same identity, and so has every other spelling.
func requireOneIdentity(t testing.TB, l Link) {
	require.NotEmpty(t, l.Identity)
	require.LessOrEqual(t, len(l.Identity), MaxBytes)
	require.True(t, utf8.ValidString(l.Identity))
	again, err := Parse(l.URL)
	require.NoError(t, err)
	l.Gift = "" // a gift is not part of the spelling
	require.Equal(t, l, again, "reading a link's spelling gives another link")
	for _, other := range spellings(l.URL) {
		if got, err := Parse(other); err == nil { // some are too long
			require.Equal(t, l.Identity, got.Identity, "%q\n%q", l.URL, other)
		}
	}
}

// spellings returns other spellings of a normalised URL. It uses no code of the
// package.
func spellings(normal string) []string {
	scheme, rest, _ := strings.Cut(normal, "://")
	host, path, _ := strings.Cut(rest, "/")
	path, fragment, routed := strings.Cut("/"+path, "#")
	path, query, asked := strings.Cut(path, "?")
	if asked {
		query = "?" + query
	}
	if routed {
		fragment = "#" + fragment
	}
	build := func(scheme, host, path, query, fragment string) string {
		return scheme + "://" + host + path + query + fragment
	}
	tracked := query + "&utm_source=x"
	if !asked {
		tracked = "?" + tracked[1:]
	}
	all := []string{
		build(scheme, "www."+host, path, query, fragment),
		build(scheme, strings.ToUpper(host), path, query, fragment),
		build(scheme, host, path+"/", query, fragment),
		build(scheme, host, path, tracked, fragment),
		build(scheme, host, "/./x/.."+path, query, fragment),
		"https://www.google.com/url?q=" + url.QueryEscape(normal),
	}
	if !strings.Contains(host, ":") {
		all = append(all, build("http", host, path, query, fragment), build("https", host, path, query, fragment),
			build("http", host+":80", path, query, fragment), build("https", host+":443", path, query, fragment))
	}
	if !asked {
		all = append(all, build(scheme, host, path, "?", fragment))
	}
	archived := strings.Contains(host, "archive.")
	if !routed && !archived && strings.Trim(path, "/") != "" { // with nothing in the path, or in a copy's, a fragment may be the page
		all = append(all, build(scheme, host, path, query, "#comments"))
	}
	if !archived { // nested archives are only unpacked up to a limit
		all = append(all, "https://web.archive.org/web/20260704123456/"+normal, "https://archive.ph/newest/"+normal)
	}
	return all
}

func TestTwelveSpellingsOfOneArticleHaveOneIdentity(t *testing.T) {
	t.Parallel()
	for _, article := range [][]string{
		{
			"https://www.harbourtimes.example/2026/07/a-heron",
			"http://harbourtimes.example/2026/07/a-heron",
			"HTTPS://WWW.HarbourTimes.example:443/2026/07/a-heron/",
			"https://harbourtimes.example/2026/07/a-heron?",
			"https://harbourtimes.example/2026/07/a-heron?utm_source=bluesky&fbclid=1#comments",
			"https://harbourtimes.example/2026/07/a-heron/amp/",
			"https://harbourtimes.example/amp/2026/07/a-heron",
			"https://harbourtimes.example/2026/07/a-heron?outputType=amp",
			"https://www.google.com/amp/s/harbourtimes.example/2026/07/a-heron/amp/",
			"https://harbourtimes-example.cdn.ampproject.org/c/s/harbourtimes.example/2026/07/a-heron.amp",
			"https://web.archive.org/web/20260704123456/https://www.harbourtimes.example/2026/07/a-heron",
			"https://archive.ph/2026.07.04-123456/https://harbourtimes.example/2026/07/a-heron",
			"https://l.facebook.com/l.php?u=https%3A%2F%2Fharbourtimes.example%2F2026%2F07%2Fa-heron%3Ffbclid%3D1&h=AT0",
		},
		{
			"https://www.youtube.com/watch?v=dQw4w9WgXcQ",
			"http://youtube.com/watch?v=dQw4w9WgXcQ&t=42s",
			"https://m.youtube.com/watch?v=dQw4w9WgXcQ",
			"https://youtu.be/dQw4w9WgXcQ?si=x",
			"https://www.youtu.be/dQw4w9WgXcQ/",
			"https://youtube.com/shorts/dQw4w9WgXcQ?feature=share",
			"https://www.youtube.com/live/dQw4w9WgXcQ",
			"https://www.youtube-nocookie.com/embed/dQw4w9WgXcQ",
			"https://www.youtube.com/watch?list=PL1&index=2&v=dQw4w9WgXcQ",
			"https://www.youtube.com/v/dQw4w9WgXcQ",
			"https://web.archive.org/web/2026/https://youtu.be/dQw4w9WgXcQ",
			"https://www.google.com/url?q=https://youtu.be/dQw4w9WgXcQ",
		},
	} {
		require.GreaterOrEqual(t, len(article), 12)
		first, err := Parse(article[0])
		require.NoError(t, err)
		for _, spelling := range article {
			l, err := Parse(spelling)
			require.NoError(t, err, spelling)
			require.Equal(t, first.Identity, l.Identity, spelling)
			requireOneIdentity(t, l)
		}
	}
}

func TestTwelveArticlesThatLookAlikeHaveTwelveIdentities(t *testing.T) {
	t.Parallel()
	for _, articles := range [][]string{
		{
			"https://a.example/2026/07/a-heron",
			"https://a.example/2026/07/A-Heron",
			"https://a.example/2026/07/a-heron-2",
			"https://a.example/2026/07/a-heron/2",
			"https://a.example/2026/08/a-heron",
			"https://a.example/2026/07/a-heron?id=1",
			"https://a.example/2026/07/a-heron?id=2",
			"https://a.example/2026/07/a-heron?p=1",
			"https://a.example/2026/07/a-heron?v=1",
			"https://a.example/2026/07/a-heron?ref=1",
			"https://a.example/2026/07/a-heron?amp=guitar",
			"https://a.example/2026/07/a-heron#!/1",
			"https://a.example/2026/07/a-heron#/1",
			"https://a.example/2026/07/a-heron.html",
			"https://a.example/2026/07/a%2Dheron%2F2",
			"https://a.example:8443/2026/07/a-heron",
			"https://m.a.example/a-heron",
			"https://amp.a.example/a-heron",
			"https://www2.a.example/2026/07/a-heron",
			"https://a.a.example/2026/07/a-heron",
		},
		{
			"https://a.example/amp", "https://a.example/", "https://a.example/shop/amp", "https://a.example/shop", "https://a.example/2026/07",
			"https://a.example/2026/07/amp", "https://a.example/2026/07/amp-review", "https://a.example/2026/07/camp", "https://a.example/amp/shop",
			"https://a.example/ramp", "https://a.example/r.amp", "https://a.example/r",
		},
		{
			"https://www.youtube.com/watch?v=dQw4w9WgXcQ", "https://www.youtube.com/watch?v=DQw4w9WgXcQ", "https://youtu.be/dQw4w9WgXc_",
			"https://www.youtube.com/watch?v=short", "https://www.youtube.com/watch?v=other", "https://www.youtube.com/playlist?list=PL1",
			"https://www.youtube.com/playlist?list=PL2", "https://www.youtube.com/@dQw4w9WgXcQ", "https://www.youtube.com/dQw4w9WgXcQ",
			"https://www.youtube.com/embed/videoseries?list=PL1", "https://music.youtube.com/watch?v=dQw4w9WgXcQ",
			"https://a.example/watch?v=dQw4w9WgXcQ",
		},
	} {
		require.GreaterOrEqual(t, len(articles), 12)
		seen := map[string]string{}
		for _, article := range articles {
			l, err := Parse(article)
			require.NoError(t, err, article)
			require.Empty(t, seen[l.Identity], article)
			seen[l.Identity] = article
		}
	}
}

// TestNoURLTakesTheIdentityOfAPageThatItDoesNotOpen tries ways in which a
// stranger might make their own link count as someone else's.
func TestNoURLTakesTheIdentityOfAPageThatItDoesNotOpen(t *testing.T) {
	t.Parallel()
	for _, uri := range []string{
		"https://bank.example@evil.example/x",
		"https://bank.example%2fx@evil.example/",
		"https://evil.example/https://bank.example/x",
		"https://evil.example/amp/s/bank.example/x",
		"https://evil.example/web/2026/https://bank.example/x",
		"https://evil.example/url?q=https://bank.example/x",
		"https://evil.example/#https://bank.example/x",
		"https://bank.example.evil.example/x",
		"https://www.google.com.evil.example/url?q=https://bank.example/x",
		"https://google.evil.example/url?q=https://bank.example/x",
		"https://web.archive.org.evil.example/web/2026/https://bank.example/x",
		"https://evilweb.archive.org/web/2026/https://bank.example/x",
		"https://archive.ph.evil.example/newest/https://bank.example/x",
		"https://evilcdn.ampproject.org.example/c/s/bank.example/x",
		"https://web.archive.org:8443/web/2026/https://bank.example/x",
		"https://web.archive.org/web/2026/https://bank.example@evil.example/x",
		"https://web.archive.org/web/2026/https://evil.example/?u=https://bank.example/x",
		"https://web.archive.org/web/2026/https://bank.example/../https://evil.example/x",
		"https://web.archive.org/details/https://bank.example/x",
		"https://www.google.com/url?q=https://evil.example/&url=https://bank.example/x",
		"https://www.google.com/url?q=https://evil.example/&q=https://bank.example/x",
		"https://www.google.com/url?q=https://evil.example/%23https://bank.example/x",
		"https://www.google.com/url?q=https://bank.example%40evil.example/x",
		"https://www.google.com/url?q=//bank.example/x",
		"https://www.google.com/url?x=https://bank.example/x",
		"https://www.google.com/amp/s/bank.example@evil.example/x",
		"https://www.google.com/amp/s/evil.example/bank.example/x",
		"https://m.github.io/2026/07/a-bridge-nobody-asked-for", "https://m.bank.example/x", "https://amp.bank.example/x",
		"https://mobile.bank.example/x", "https://bank.example:8443/x", "https://bank.example/x/amp",
	} {
		l, err := Parse(uri)
		require.NotEqual(t, "bank.example/x", l.Identity, "%s %v", uri, err)
	}
}

func TestFewURLsMayContainEachOther(t *testing.T) {
	t.Parallel()
	redirect := func(n int, inside string) string {
		for range n {
			inside = "https://www.google.com/url?q=" + url.QueryEscape(inside)
		}
		return inside
	}
	archive := func(n int, inside string) string {
		return strings.Repeat("https://web.archive.org/web/2026/", n) + inside
	}
	const page = "https://a.example/x"
	l, err := Parse(redirect(maxNesting, page))
	require.NoError(t, err)
	require.Equal(t, Link{URL: page, Identity: "a.example/x", Site: "a.example"}, l)
	_, err = Parse(redirect(maxNesting+1, page))
	require.ErrorContains(t, err, "contain each other")
	_, err = Parse(strings.Repeat("https://www.google.com/url?q=", 500) + page)
	require.ErrorContains(t, err, "contain each other")

	for inside, want := range map[string]string{
		archive(maxNesting, page):                              "a.example/x",
		archive(maxNesting+1, page):                            "web.archive.org/web/2026/" + page,
		archive(2, redirect(maxNesting-2, page)):               "a.example/x",
		redirect(maxNesting, archive(maxNesting, page)):        "a.example/x",
		archive(1, redirect(3, archive(1, redirect(1, page)))): "web.archive.org/web/2026/" + redirect(1, page),
		redirect(1, archive(1, redirect(1, page))):             "a.example/x",
		redirect(maxNesting, archive(1, redirect(2, page))):    "a.example/x",
		archive(maxNesting, "https://user@evil.example/"):      "web.archive.org/web/2026/https://user@evil.example",
		archive(maxNesting-1, "http://169.254.169.254/x"):      "web.archive.org/web/2026/http://169.254.169.254/x",
		archive(maxNesting+40, "https://www.google.com/amp/"):  "web.archive.org/web/2026/" + archive(39, "https://www.google.com/amp"),
	} {
		l, err := Parse(inside)
		require.NoError(t, err, inside)
		require.Equal(t, want, l.Identity, inside)
		requireOneIdentity(t, l)
	}
}

func TestHostOfShortLinksIsKnown(t *testing.T) {
	t.Parallel()
	for _, at := range []string{
		"t.co/a", "bit.ly/a", "www.bit.ly/a", "TinyURL.com/a", "ow.ly/a", "nyti.ms/a", "www.tiktok.com/t/a",
		"www.reddit.com/r/a/s/b",
	} {
		require.True(t, IsShort("https://"+at), at)
	}
	for _, at := range []string{
		"youtu.be/a", "www.youtube.com/a", "a.bit.ly/a", "bit.ly.example/a", "nott.co/a", "a.example/a", "bit.ly/",
		"bit.ly:8080/a", "www.reddit.com/r/a/b/s", "x",
	} {
		require.False(t, IsShort("https://"+at), at)
	}
}

func TestLinkThatMayBeShort(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"sho.example/Ab1", "sho.example/x7f", "www.sho.example/ABC/", "a.io/bcd"} {
		l, err := Parse("https://" + at)
		require.NoError(t, err)
		require.True(t, l.MayShort, at)
	}
	for _, at := range []string{
		"sho.example/about", "sho.example/Ab", "sho.example/Ab1/c", "sho.example/a-1", "sho.example/Ab1?x=1",
		"sho.example/Ab1#/x", "a.sho.example/Ab1", "longername.example/Ab1", "bit.ly/Ab1", "x.com/Ab1",
		"sho.example/Abcdefghijkl1", "sho.example:81/Ab1",
	} {
		l, err := Parse("https://" + at)
		require.NoError(t, err)
		require.False(t, l.MayShort, at)
	}
}
