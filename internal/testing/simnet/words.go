package simnet

import (
	"maps"
	"math/rand/v2"
	"strings"
)

// site is a publisher of stories.
type site struct {
	host   string
	name   string
	topics []string
}

func sites() []site {
	return []site{
		{"harbourtimes.example", "The Harbour Times", []string{"city", "politics", "climate"}},
		{"meridian.example", "Meridian", []string{"politics", "world", "economy"}},
		{"northcourier.example", "Northern Courier", []string{"city", "sport", "weather"}},
		{"quanta.example", "Quanta & Co", []string{"science", "space"}},
		{"fieldnotes.example", "Field Notes", []string{"climate", "science", "animals"}},
		{"thebench.example", "The Bench", []string{"law", "politics"}},
		{"kernelpanic.example", "Kernel Panic", []string{"tech", "code"}},
		{"lowlatency.example", "Low Latency", []string{"code", "tech"}},
		{"longread.example", "Longread", []string{"culture", "history", "world"}},
		{"ledgerdaily.example", "Ledger Daily", []string{"economy", "tech"}},
		{"pitchside.example", "Pitchside", []string{"sport"}},
		{"secondhelping.example", "Second Helping", []string{"food"}},
		{"orbitlog.example", "Orbit Log", []string{"space"}},
		{"stagedoor.example", "Stage Door", []string{"culture"}},
		{"tidalchart.example", "Tidal Chart", []string{"climate", "weather"}},
		{"oldmaps.example", "Old Maps", []string{"history"}},
		{"civicnote.example", "Civic Note", []string{"city", "law"}},
		{"packetloss.example", "Packet Loss", []string{"tech", "code"}},
		{"wingspan.example", "Wingspan", []string{"animals", "climate"}},
		{"newgrain.example", "New Grain", []string{"food", "economy"}},
	}
}

// topic holds the parts of headlines: every subject fits every tail.
type topic struct {
	subjects, tails, summaries []string
}

func topics() map[string]topic {
	all := newsTopics()
	maps.Copy(all, otherTopics())
	return all
}

func newsTopics() map[string]topic {
	return map[string]topic{
		"city": {
			[]string{
				"The night tram", "A bridge nobody asked for", "The last corner library", "Free buses", "A former car park", "The harbour lights",
			},
			[]string{
				"changed a neighbourhood in one winter", "is back after eleven years", "will open to everyone in spring",
				"cost less than the study about it", "has become the busiest place in town",
			},
			[]string{
				"Residents had stopped hoping. Then the numbers came in.", "What the council expected, what happened instead, and who noticed first.",
			}},
		"politics": {
			[]string{
				"A minority budget", "The quietest committee in parliament", "Three mayors and one river", "A vote held by lantern light",
				"The lobbying register",
			},
			[]string{
				"survives by a single vote", "explains how decisions are really made", "is rewriting the rules of the coalition",
				"was read by nobody until Tuesday", "divides the government again",
			},
			[]string{
				"Our correspondents followed the talks for nine days.",
				"The document itself, with notes, and what each side left out of its press release.",
			}},
		"climate": {
			[]string{"A peat bog", "The dyke of 1953", "Rooftop gardens", "Heat pumps in old houses", "The drained polder"},
			[]string{
				"stores more than the forest around it", "is being moved, stone by stone", "cut the peak by four degrees",
				"turn out cheaper than anybody modelled", "floods on purpose now",
			},
			[]string{
				"Measurements from two summers, and a method others can copy.",
				"Engineers call it retreat. The people who live there have a better word.",
			}},
		"science": {
			[]string{"A century-old seed", "The slowest experiment in Europe", "A new kind of ice", "Lichen clocks", "The missing half of a proof"},
			[]string{
				"has germinated in the dark", "gave its first result this morning", "bends light the wrong way", "date a wall that records could not",
				"was in a drawer all along",
			},
			[]string{
				"The paper is short, the data are open, and the surprise is on page three.", "Two groups tried to break the result and could not.",
			}},
		"space": {
			[]string{"A cubesat the size of a loaf", "The far antenna", "An old probe", "A rocket stage", "The lander's microphone"},
			[]string{
				"has outlived its makers' company", "hears a signal it should not", "wakes up for nineteen minutes", "came down where it was told to",
				"recorded something like rain",
			},
			[]string{"The raw telemetry is public; here is how to read it.", "Controllers had one window, and a spreadsheet from 2009."}},
		"tech": {
			[]string{"A phone you can open with a coin", "The small web", "An e-mail server at home", "The repair café", "Paper tickets"},
			[]string{
				"is selling faster than its maker can build it", "has a search engine again", "turned out to be possible after all",
				"publishes its failures, and gets better", "are back, with good reasons",
			},
			[]string{
				"A review after six months of daily use, with everything that broke.", "No venture money, no growth plan, forty thousand users.",
			}},
		"code": {
			[]string{"A queue in your database", "The bug that waited nine years", "Boring technology", "One Postgres", "Reading code aloud"},
			[]string{
				"is enough for longer than you think", "was a comment, not a line", "wins the incident again", "handled the whole launch day",
				"finds what review misses",
			},
			[]string{
				"With benchmarks, the scripts to repeat them, and an honest list of limits.",
				"A post-mortem without heroes: what failed, in which order, and what was changed.",
			}},
		"economy": {
			[]string{"A four-day week", "The price of bread", "A village that owns its grid", "Container rates", "The second-hand market"},
			[]string{
				"after three years, in figures", "tells you more than the index", "has paid off its loan early", "are falling, and nobody knows why",
				"is now larger than the first",
			},
			[]string{"We asked the people who keep the books.", "The chart that started the argument, and the two ways to read it."}},
	}
}

func otherTopics() map[string]topic {
	return map[string]topic{
		"sport": {
			[]string{
				"The keeper who studies wind", "A relay team of four sisters", "The smallest club in the league", "A referee's diary",
				"Twelve minutes of added time",
			},
			[]string{
				"holds on for a draw", "breaks a record from 1988", "plays its home game on a ferry", "is the best book of the season",
				"decided everything",
			},
			[]string{"Report, pictures and the table.", "How a training ground beside a motorway became an advantage."}},
		"culture": {
			[]string{
				"A forgotten quartet", "The film nobody could buy", "A theatre without lights", "The translator's notes", "One poem, eleven readings",
			},
			[]string{
				"is performed for the first time", "is free to watch until Sunday", "sold out in four minutes", "are better than the novel",
				"start an argument worth having",
			},
			[]string{"A conversation in two parts; the second one is funnier.", "The archive opened its boxes, and let us photograph them."}},
		"history": {
			[]string{
				"A map drawn from memory", "The salt road", "An account book of 1641", "The town that moved uphill", "Letters found under a floor",
			},
			[]string{
				"is more accurate than the survey", "can be walked again, end to end", "names the people the chronicle left out",
				"left its street names behind", "answer a question from the trial",
			},
			[]string{"With scans in full resolution, and a transcript that readers may correct.", "Three historians, one source, no agreement."}},
		"law": {
			[]string{
				"A ruling of four sentences", "The right to repair", "Street photography", "A contract in plain words", "The open-records request",
			},
			[]string{
				"will be quoted for years", "passes its first real test", "has its day in court", "survived every clause of the appeal",
				"that took five hundred days",
			},
			[]string{
				"What it says, what it does not say, and what to do on Monday.", "The court publishes the hearing as audio: start at minute forty.",
			}},
		"food": {
			[]string{"A bread with three ingredients", "The plum harvest", "Canteen soup", "Fermented everything", "Potatoes, again"},
			[]string{
				"and no shortcuts", "arrived three weeks early", "deserves its own museum", "explained by a microbiologist",
				"but better than you remember",
			},
			[]string{"The recipe scales from two people to two hundred.", "Tested in four kitchens; one of them caught fire, unrelated."}},
		"animals": {
			[]string{"A stork with a transmitter", "The urban fox count", "Eels on the stairs", "Crows that queue", "The return of the lynx"},
			[]string{
				"flew home by train", "has doubled, politely", "use the ladder we built them", "learned it from us", "was confirmed by a doorbell",
			},
			[]string{"With a live map, and the story of the volunteers behind it.", "Biologists are careful with the word. They used it anyway."}},
		"weather": {
			[]string{"The storm of the year", "Fog at noon", "Saharan dust", "The coldest June", "A halo over the bay"},
			[]string{
				"in one picture", "has a name and a history", "paints the coast orange tonight", "and why the models saw it coming",
				"photographed from nine towns",
			},
			[]string{"Live measurements from forty amateur stations.", "What to expect until Thursday, without adjectives."}},
		"world": {
			[]string{
				"A border that is a café", "The ferry between two calendars", "Night market politics", "The interpreters' strike",
				"An election counted by hand",
			},
			[]string{
				"opens on both sides", "runs on neither", "moves faster than the ministry", "is heard in six languages",
				"took nine days, and nobody complained",
			},
			[]string{"A reportage, with sound.", "Our reporter travelled the whole route, and kept the tickets."}},
	}
}

// chatter returns what accounts write without a link.
func chatter() []string {
	return []string{
		"good morning to everyone who also forgot what day it is",
		"the coffee machine and I have agreed to see other people",
		"three hours of meetings to decide that we need a meeting",
		"my sourdough has a better social life than me",
		"finally fixed it. it was the cache. it is always the cache",
		"does anybody else read the footnotes first?",
		"the neighbour's cat has moved in, negotiations continue",
		"today I learned that my bicycle has a sixth gear",
		"slow rain, good book, phone in another room",
		"unpopular opinion: the second verse is the better one",
		"I have opened the window. spring may enter.",
		"train is late, platform is friendly",
		"writing tests on a Friday like a responsible adult",
		"猫が窓から鳥を見ている。平和な午後。",
		"heute mal wieder zu viel Kuchen, keine Reue",
		"encore un matin où le réveil a gagné",
		"who else is watching the moon right now 🌕",
		"the heron is back at the pond",
		"plans for the weekend: none, in detail",
		"I said \"quick question\" and we both knew it was a lie",
	}
}

// remarks returns what accounts write about a link.
func remarks() []string {
	return []string{
		"this is really worth your time", "read to the end", "finally somebody wrote this down", "hm.", "good morning, here is your long read",
		"the second half surprised me", "sharing this with everybody I know", "great reporting", "not sure I agree, but read it",
		"so much care in this piece",
		"bookmarking for later", "the chart alone is worth it", "if you read one thing today", "lesenswert", "これは面白い", "à lire",
	}
}

// firstNames and lastNames make handles.
func firstNames() []string {
	return []string{
		"ada", "bo", "cem", "dora", "elif", "femi", "greta", "hugo", "ines", "jonas", "kaya", "lior", "mina", "noor",
		"otto", "pia", "quim", "rosa", "sam", "tove", "uma", "vito", "wren", "xenia", "yuki", "zoe",
	}
}

func lastNames() []string {
	return []string{
		"writes", "codes", "reads", "cooks", "walks", "gardens", "draws", "rides", "sails", "teaches", "bakes",
		"plays",
	}
}

func pick[T any](r *rand.Rand, all []T) T { return all[r.IntN(len(all))] }

// slug returns a headline as part of a URL.
func slug(headline string) string {
	var b strings.Builder
	for _, c := range strings.ToLower(headline) {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			b.WriteRune(c)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	return strings.Trim(b.String(), "-")
}
